# For tests of commands on models, sourced after command_test.sh. $golden: the folder of what transformers has made.
# A folder as Hugging Face's: config.json, and model.safetensors of the golden weights; the first five golden tokens.
folder() { # model, folder
  mkdir -p "$2"
  cp "$golden/$1.json" "$2/config.json"
  python3 - "$golden/$1.safetensors" "$2" << 'EOF'
import json, struct, sys
raw = open(sys.argv[1], "rb").read()
size = struct.unpack("<Q", raw[:8])[0]
header, data = json.loads(raw[8 : 8 + size]), raw[8 + size :]
out, body = {}, b""
for name, of in header.items():
    if name.startswith("weight/"):
        begin, end = of["data_offsets"]
        out[name[7:]] = {**of, "data_offsets": [len(body), len(body) + end - begin]}
        body += data[begin:end]
text = json.dumps(out).encode()
open(sys.argv[2] + "/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + body)
begin = header["tokens"]["data_offsets"][0]
print(*struct.unpack("<5q", data[begin : begin + 40]), file=open(sys.argv[2] + "/tokens", "w"))
EOF
}
