"""Text to tokens: a folder that `zero train --data` reads, made with a tokenizer of Hugging Face's.

python -m zerotorch.tokenize --tokenizer FOLDER --data PATH --out DIR

Documents (files, or the lines of JSONL) are put in an order that depends on the seed, split into training and
validation, tokenized, and written one after the other, each followed by the tokenizer's end-of-text token:

    train.bin, val.bin   tokens of 2 bytes, or of 4 for vocabularies over 65,536; little-endian
    pieces.json          the bytes of each token, hexadecimal, by which samples are printed
    tokens.json          what they are
"""

from __future__ import annotations

import argparse
import array
import hashlib
import json
import os
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["main"]

AT_A_TIME = 4 << 20  # characters that are tokenized together
OWN_FILES = {"train.bin", "val.bin", "pieces.json", "tokens.json"}
LARGEST_PIECE = 1 << 20  # characters of a document that are tokenized as one


class Refused(Exception):
    """What the user can mend."""


def bytes_of_characters() -> dict[str, int]:
    """Which byte each character of a byte-level vocabulary stands for: printable ones for themselves, the others, in
    their order, for characters from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    return table | {chr(256 + i): byte for i, byte in enumerate(others)}


def kinds_in(part: Any) -> set[str]:
    """The types of a decoder and of all that it is made of."""
    if isinstance(part, list):
        return set().union(*map(kinds_in, part)) if part else set()
    if not isinstance(part, dict):
        return set()
    return {str(part["type"])} | kinds_in(list(part.values())) if "type" in part else kinds_in(list(part.values()))


def pieces_of(tokenizer: Any) -> list[str]:
    """The bytes of each token, hexadecimal, by its number."""
    described = json.loads(tokenizer.to_str())
    kinds = kinds_in(described.get("decoder"))
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    added = {entry["id"] for entry in described.get("added_tokens", [])}
    table = bytes_of_characters()
    pieces = [""] * (max(vocabulary.values()) + 1)
    for text, number in vocabulary.items():
        if number in added:
            raw = text.encode()
        elif "ByteLevel" in kinds:
            raw = b"".join(bytes([table[c]]) if c in table else c.encode() for c in text)
        elif "ByteFallback" in kinds and len(text) == 6 and text.startswith("<0x"):
            raw = bytes([int(text[3:5], 16)])
        elif not kinds:  # tokens are words
            raw = f" {text}".encode()
        else:
            raw = text.replace("\u2581", " ").encode()
        pieces[number] = raw.hex()
    return pieces


def files_of(source: Path, suffixes: list[str]) -> list[Path]:
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise Refused(f"--data {source}: there is no such file or folder")
    found = sorted(
        path
        for path in source.rglob("*")
        if path.is_file()
        and ("" in suffixes or path.suffix in suffixes)
        and not any(part.startswith(".") for part in path.relative_to(source).parts)
    )
    if not found:
        raise Refused(f"--data {source}: has no files that end in {' '.join(suffixes)}; --suffix names others")
    return found


def text_of(path: Path) -> str | None:
    raw = path.read_bytes()
    try:
        return None if b"\0" in raw else raw.decode()
    except UnicodeDecodeError:
        return None


def lines_of(path: Path, field: str) -> Iterator[str]:
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)[field]
            except (json.JSONDecodeError, KeyError, TypeError):
                raise Refused(f'{path}:{number}: want a JSON object with "{field}"; --field names another') from None
            if not isinstance(text, str):
                raise Refused(f'{path}:{number}: "{field}" is not a text')
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise Refused(f'{path}:{number}: "{field}" is not Unicode: {error.reason}') from None
            yield text


def documents_of(files: list[Path], field: str) -> tuple[list[str], int]:
    """Each document once, and how many files were left out."""
    documents, seen, left_out = [], set(), 0
    for path in files:
        if path.suffix == ".jsonl":
            texts: Iterator[str] = lines_of(path, field)
        else:
            text = text_of(path)
            left_out += text is None
            texts = iter([] if text is None else [text])
        for text in texts:
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            if text and digest not in seen:
                seen.add(digest)
                documents.append(text)
    return documents, left_out


def cut(document: str) -> Iterator[str]:
    """Large ones in pieces that end with a line."""
    while len(document) > LARGEST_PIECE:
        end = document.rfind("\n", 0, LARGEST_PIECE) + 1 or LARGEST_PIECE
        yield document[:end]
        document = document[end:]
    yield document


def write_split(tokenizer: Any, documents: list[str], end: int, code: str, path: Path) -> int:
    """Returns the number of tokens."""
    count, begin = 0, 0
    with path.open("wb") as out:
        while begin < len(documents):
            last, size = begin, 0
            while last < len(documents) and size < AT_A_TIME:
                size += len(documents[last])
                last += 1
            some = [piece for document in documents[begin:last] for piece in (*cut(document), None)]
            try:
                encoded = iter(tokenizer.encode_batch([p for p in some if p is not None], add_special_tokens=False))
            except Exception as error:  # noqa: BLE001 - it raises nothing better
                raise Refused(f"the tokenizer cannot encode the text: {error}") from None
            tokens = array.array(code)
            for piece in some:
                tokens.extend([end] if piece is None else next(encoded).ids)
            if sys.byteorder == "big":
                tokens.byteswap()
            tokens.tofile(out)
            count += len(tokens)
            begin = last
    return count


def end_of_text(tokenizer: Any, folder: Path, wanted: str | None) -> int:
    """The number of the token after each document."""
    names = [wanted] if wanted else []
    if not wanted:
        config = folder / "tokenizer_config.json"
        try:
            stated = json.loads(config.read_text()).get("eos_token") if config.exists() else None
        except (ValueError, AttributeError, UnicodeDecodeError):
            raise Refused(f"{config}: is not a JSON object") from None
        stated = stated.get("content") if isinstance(stated, dict) else stated
        if stated is not None and not isinstance(stated, str):
            raise Refused(f"{config}: eos_token is no text")
        names = ["<|endoftext|>", "</s>", "<|end_of_text|>"] + ([stated] if stated else [])
    for name in names:
        number = tokenizer.token_to_id(name)
        if number is not None:
            return int(number)
    raise Refused(f"the tokenizer has none of {' '.join(names)}; --separator names the token after each document")


def load(folder: Path) -> tuple[Any, Path]:
    try:
        import tokenizers
    except ImportError:
        raise Refused("this needs the package tokenizers: pip install tokenizers") from None
    path = folder / "tokenizer.json" if folder.is_dir() else folder
    if not path.exists():
        raise Refused(f"--tokenizer {folder}: there is no tokenizer.json")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - it raises nothing better
        raise Refused(f"{path}: is no tokenizer: {error}") from None
    # Of single inputs, as some files have them: here they would cut every document.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, path.parent


def split_of(documents: list[str], fraction: float, seed: int) -> tuple[list[str], list[str]]:
    if fraction == 1:
        return [], documents
    random.Random(seed).shuffle(documents)
    wanted, have, count = fraction * sum(map(len, documents)), 0, 0
    while count + 1 < len(documents) and have < wanted:
        have += len(documents[count])
        count += 1
    if count == 0:  # one document: its end
        document = documents[0]
        at = document.rfind("\n", 0, round(len(document) * (1 - fraction))) + 1 or round(len(document) * (1 - fraction))
        return [document[:at]], [document[at:]]
    return documents[count:], documents[:count]


def encode_prompt(options: argparse.Namespace) -> None:
    """prompt.json: the tokens of one text as a model begins with it, special ones included; pieces.json."""
    tokenizer, _ = load(options.tokenizer)
    text = text_of(options.prompt)
    if text is None:
        raise Refused("the prompt is not text (UTF-8)")
    try:
        tokens = tokenizer.encode(text).ids
    except Exception as error:  # noqa: BLE001 - it raises nothing better
        raise Refused(f"the tokenizer cannot encode the text: {error}") from None
    special = [number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special]
    (options.out / "prompt.json").write_text(json.dumps({"tokens": tokens, "special": special}))
    (options.out / "pieces.json").write_text(json.dumps(pieces_of(tokenizer)))


def made_from(options: argparse.Namespace, files: list[Path]) -> str:
    """Changes with whatever decides about the tokens."""
    given = [options.field, options.separator, options.validation_fraction, options.seed, str(options.tokenizer.resolve())]
    tokenizer = options.tokenizer / "tokenizer.json" if options.tokenizer.is_dir() else options.tokenizer
    settings = tokenizer.parent / "tokenizer_config.json"
    used = [tokenizer, *([settings] if settings.exists() else []), *files]
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in used]
    return hashlib.blake2b(json.dumps([given, stats]).encode(), digest_size=16).hexdigest()


def is_made(out: Path, source: str) -> bool:
    try:
        stored = json.loads((out / "tokens.json").read_text())
        sizes = [(out / name).stat().st_size // stored["token_nbytes"] for name in ("train.bin", "val.bin")]
    except (OSError, ValueError, KeyError):
        return False
    counts = [stored.get("train_tokens"), stored.get("validation_tokens")]
    return stored.get("made_from") == source and sizes == counts and (out / "pieces.json").exists()


def tokenize(options: argparse.Namespace) -> str:
    tokenizer, folder = load(options.tokenizer)
    end = end_of_text(tokenizer, folder, options.separator)
    out: Path = options.out
    if out.exists() and not (out.is_dir() and {path.name for path in out.iterdir()} <= OWN_FILES):
        raise Refused(f"--out {out}: exists, and has other things than tokens; choose another")
    files = files_of(options.data, options.suffix)
    source = made_from(options, files)
    if options.keep and is_made(out, source):
        return ""
    documents, left_out = documents_of(files, options.field)
    if not documents:
        raise Refused(f"--data {options.data}: has no text (UTF-8)")
    train, validation = split_of(documents, options.validation_fraction, options.seed)
    pieces = pieces_of(tokenizer)
    code = "H" if len(pieces) <= 1 << 16 else "I"
    temporary = out.with_name(f"{out.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    try:
        counts = [
            write_split(tokenizer, part, end, code, temporary / name)
            for part, name in ((train, "train.bin"), (validation, "val.bin"))
        ]
        text_nbytes = sum(len(document.encode()) for document in validation)
        (temporary / "pieces.json").write_text(json.dumps(pieces))
        (temporary / "tokens.json").write_text(
            json.dumps(
                {
                    "token_nbytes": array.array(code).itemsize,
                    "vocab": len(pieces),
                    "separator": end,
                    "train_tokens": counts[0],
                    "validation_tokens": counts[1],
                    "validation_text_nbytes_per_token": text_nbytes / max(1, counts[1]),
                    "source": str(options.data.resolve()),
                    "tokenizer": str(folder.resolve()),
                    "made_from": source,
                },
                indent=1,
            )
            + "\n"
        )
        if out.exists():
            shutil.rmtree(out)
        temporary.rename(out)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if options.keep:
        return f"tokens of {options.data}: {left_out} files left out: not UTF-8" if left_out else ""
    skipped = f"; {left_out} files left out: not UTF-8" if left_out else ""
    return (
        f"{out}: {counts[0]:,} tokens to train on, {counts[1]:,} to validate on, of {len(documents):,} documents; "
        f"a token is {text_nbytes / max(1, counts[1]):.2f} bytes{skipped}"
    )


def fraction(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError("want above 0 and at most 1")
    return value


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m zerotorch.tokenize", description="Text to tokens that `zero train --data` reads."
    )
    parser.add_argument("--tokenizer", type=Path, required=True, help="a folder with tokenizer.json, or that file")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--data", type=Path, help="a file or folder of text, or of JSONL")
    what.add_argument("--prompt", type=Path, help=argparse.SUPPRESS)  # of `zero generate`
    parser.add_argument("--out", type=Path, required=True, help="folder of the tokens; replaced if it is one already")
    parser.add_argument(
        "--suffix", action="append", help="of files in a folder (default: .txt .md .py .rst .jsonl); may be repeated"
    )
    parser.add_argument("--field", default="text", help='of the objects in JSONL (default: "text")')
    parser.add_argument("--separator", help="the token after each document (default: the tokenizer's end of text)")
    parser.add_argument("--validation-fraction", type=fraction, default=0.05, help="in whole documents (default 0.05); 1: all")
    parser.add_argument("--seed", type=int, default=1234, help="of the order of the documents")
    parser.add_argument("--keep", action="store_true", help="do nothing where --out is made of this")
    options = parser.parse_args(arguments)
    options.suffix = options.suffix or [".txt", ".md", ".py", ".rst", ".jsonl"]
    try:
        if options.prompt:
            encode_prompt(options)
        elif text := tokenize(options):
            print(text, file=sys.stderr if options.keep else sys.stdout)
    except (Refused, OSError) as error:
        print(f"zerotorch.tokenize: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
