"""zerotorch.tokenize: the tokens of the tokenizer, whole documents, and the bytes of each token."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest

tokenizers = pytest.importorskip("tokenizers")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402
from zerotorch import tokenize  # noqa: E402

TEXTS = [
    "def f(x):\n    return x + 1\n",
    "Größe, naïve, 東京 and \U0001f600!\n",
    "a line\r\nwith\ttabs and  spaces  ",
    "x" * 5000 + "\n" + "y z " * 500,
]


def byte_level(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(TEXTS, trainer)
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def sentence_pieces(folder: Path) -> Tokenizer:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "line", "\u2581a"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("\u2581", "a")], unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = tokenize.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out + err


def write_texts(folder: Path) -> None:
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        (folder / f"{number}.txt").write_bytes(text.encode())


@pytest.mark.parametrize("make", [byte_level, sentence_pieces])
def test_every_document_comes_back_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str], make: object) -> None:
    tokenizer = make(tmp_path / "tokenizer")  # type: ignore[operator]
    write_texts(tmp_path / "texts")
    large = [TEXTS[3] + "x", TEXTS[3] + "y"]  # as large as the largest, which would be cut otherwise
    for number, text in enumerate(large):
        (tmp_path / "texts" / f"large{number}.txt").write_text(text)
    (tmp_path / "texts" / "again.txt").write_bytes(TEXTS[0].encode())  # a duplicate
    (tmp_path / "texts" / "latin1.txt").write_bytes("Größe".encode("latin-1"))
    (tmp_path / "texts" / ".hidden.txt").write_text("no")
    (tmp_path / "texts" / "empty.txt").write_text("")
    out = tmp_path / "out"
    arguments = ("--tokenizer", tmp_path / "tokenizer", "--data", tmp_path / "texts", "--out", out)
    code, said = run(capsys, *arguments, "--validation-fraction", 0.3)
    assert code == 0, said
    assert "6 documents" in said and "1 files left out: not UTF-8" in said
    facts = json.loads((out / "tokens.json").read_text())
    pieces = [bytes.fromhex(piece) for piece in json.loads((out / "pieces.json").read_text())]
    assert len(pieces) == tokenizer.get_vocab_size()
    found, lengths = [], {}
    for name in ("train", "val"):
        tokens = numpy.fromfile(out / f"{name}.bin", dtype="<u2").tolist()
        lengths[name] = len(tokens)
        assert tokens[-1] == facts["separator"]
        document: list[int] = []
        for token in tokens:
            if token != facts["separator"]:
                document.append(token)
                continue
            found.append(b"".join(pieces[t] for t in document).decode())
            assert document == tokenizer.encode(found[-1], add_special_tokens=False).ids
            document = []
    assert sorted(found) == sorted(TEXTS + large)
    assert lengths == {"train": facts["train_tokens"], "val": facts["validation_tokens"]}
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert run(capsys, *arguments, "--validation-fraction", 0.3)[0] == 0  # the same again
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_jsonl_and_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    byte_level(tmp_path / "tokenizer")
    lines = "".join(json.dumps({"body": text}) + "\n\n" for text in TEXTS)
    (tmp_path / "all.jsonl").write_text(lines)
    common = ("--tokenizer", tmp_path / "tokenizer", "--out", tmp_path / "out", "--data")
    code, said = run(capsys, *common, tmp_path / "all.jsonl", "--field", "body")
    assert code == 0 and "4 documents" in said
    code, said = run(capsys, *common, tmp_path / "all.jsonl")
    assert code == 1 and 'all.jsonl:1: want "text" (--field of zerotorch.tokenize names another)' in said
    (tmp_path / "one.txt").write_text("a line of text\n" * 100)
    code, said = run(capsys, *common, tmp_path / "one.txt", "--validation-fraction", 0.1)
    assert code == 0 and "1 documents" in said
    facts = json.loads((tmp_path / "out" / "tokens.json").read_text())
    assert 0 < facts["validation_tokens"] < facts["train_tokens"]


def test_nothing_is_cut_or_filled_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = byte_level(tmp_path / "plain")
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=20)
    (tmp_path / "cutting").mkdir()
    tokenizer.save(str(tmp_path / "cutting" / "tokenizer.json"))
    write_texts(tmp_path / "texts")
    for name in ("plain", "cutting"):
        code, said = run(
            capsys, "--tokenizer", tmp_path / name, "--data", tmp_path / "texts", "--out", tmp_path / f"out_{name}"
        )
        assert code == 0, said
    for name in ("train.bin", "val.bin"):
        assert (tmp_path / "out_plain" / name).read_bytes() == (tmp_path / "out_cutting" / name).read_bytes()


def test_odd_jsonl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    byte_level(tmp_path / "tokenizer")
    common = ("--tokenizer", tmp_path / "tokenizer", "--out", tmp_path / "out", "--data")
    (tmp_path / "bom.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "a line"}\n{"text": "another"}\n')
    code, said = run(capsys, *common, tmp_path / "bom.jsonl")
    assert code == 0 and "2 documents" in said
    (tmp_path / "half.jsonl").write_text('{"text": "fine"}\n{"text": "\\ud800"}\n')
    code, said = run(capsys, *common, tmp_path / "half.jsonl")
    assert code == 1 and 'half.jsonl:2: is not Unicode' in said


def test_what_is_wrong_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    byte_level(tmp_path / "tokenizer")
    write_texts(tmp_path / "texts")
    out = tmp_path / "out"

    def refused(words: str, *, tokenizer: Path = tmp_path / "tokenizer", data: str = "texts", more: tuple[str, ...] = ()):
        code, said = run(capsys, "--tokenizer", tokenizer, "--data", tmp_path / data, "--out", out, *more)
        assert code == 1 and words in said, said
        assert not (out / "tokens.json").exists()
        assert not list(tmp_path.glob("out.*"))  # nothing half-written

    refused("there is no tokenizer.json", tokenizer=tmp_path / "texts")
    refused("there is no such file or folder", data="nowhere")
    refused("has no files that end in .cpp", more=("--suffix", ".cpp"))
    refused("the tokenizer has none of <end>", more=("--separator", "<end>"))
    (tmp_path / "broken.json").write_text((tmp_path / "tokenizer" / "tokenizer.json").read_text()[:500])
    refused("is no tokenizer", tokenizer=tmp_path / "broken.json")
    out.mkdir()
    (out / "mine.txt").write_text("precious")
    refused("exists, and has other things than tokens")
    assert (out / "mine.txt").read_text() == "precious"


def test_what_is_kept_and_one_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    byte_level(tmp_path / "tokenizer")
    write_texts(tmp_path / "texts")
    out = tmp_path / "out"
    common = ("--tokenizer", tmp_path / "tokenizer", "--data", tmp_path / "texts", "--out", out, "--keep")

    def written() -> tuple[int, int]:
        code, said = run(capsys, *common, "--validation-fraction", "1")
        assert code == 0 and said == ""
        return (out / "val.bin").stat().st_mtime_ns, (out / "train.bin").stat().st_size

    first = written()
    assert first[1] == 0  # all of it is to validate on
    assert written() == first
    (out / "val.bin").write_bytes((out / "val.bin").read_bytes()[:-2])
    mended = written()
    assert mended != first and written() == mended
    (tmp_path / "texts" / "more.py").write_text("x = 1\n")
    assert written() != mended
    (tmp_path / "prompt").write_text("one text, \u00e4\n")
    code, said = run(capsys, "--tokenizer", tmp_path / "tokenizer", "--prompt", tmp_path / "prompt", "--out", out)
    assert code == 0 and said == ""
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer" / "tokenizer.json"))
    assert json.loads((out / "prompt.json").read_text())["tokens"] == tokenizer.encode("one text, \u00e4\n").ids
    (tmp_path / "prompt").write_bytes(b"\xff")
    code, said = run(capsys, "--tokenizer", tmp_path / "tokenizer", "--prompt", tmp_path / "prompt", "--out", out)
    assert code == 1 and "is not text" in said


CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 東京?"},
    {"role": "assistant", "content": "A city. naïve?"},
    {"role": "user", "content": "And x?"},
    {"role": "assistant", "content": "x + 1"},
]


def with_template(folder: Path, template: object, in_file: bool = False) -> None:
    byte_level(folder)
    if in_file:
        (folder / "chat_template.jinja").write_text(str(template))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|endoftext|>"} | ({} if in_file else {"chat_template": template}))
    )


def decoded(folder: Path, name: str) -> tuple[str, list[str]]:
    """The whole text of a split, and the runs of what is learnt."""
    tokens = numpy.fromfile(folder / f"{name}.bin", dtype="<u4")
    pieces = [bytes.fromhex(piece) for piece in json.loads((folder / "pieces.json").read_text())]
    whole = b"".join(pieces[token & ~tokenize.CONTEXT] for token in tokens.tolist()).decode()
    runs, inside = [], False
    for token in tokens.tolist():
        learnt = token < tokenize.CONTEXT
        if learnt and not inside:
            runs.append(b"")
        if learnt:
            runs[-1] += pieces[token]
        inside = learnt
    return whole, [run.decode() for run in runs]


def write_lines(path: Path, lines: list[object]) -> None:
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def doc(size: int, learnt: tuple[tuple[int, int], ...] | None = None) -> tokenize.Document:
    return tokenize.Document("a line of it\n" * (size // 13) + "x" * (size % 13), learnt)


@pytest.mark.parametrize(
    "sizes",
    [[620_000, 240], [240, 620_000], [10_000] * 40, [5, 5, 200_000, 5], [900, 90, 9], [30_000, 31_000], [1000], [2, 2]],
)
@pytest.mark.parametrize("fraction", [0.05, 0.3])
def test_validation_is_about_what_was_asked_for(sizes: list[int], fraction: float) -> None:
    text = "".join(sorted("".join(doc(size).text for size in sizes)))
    for seed in range(12):
        for spans in (None, ((0, 1),)):
            if spans is not None and len(sizes) == 1:
                continue
            documents = [doc(size, spans) for size in sizes]
            train, validation = tokenize.split_of(documents, fraction, seed)
            assert "".join(sorted("".join(one.text for one in train + validation))) == text
            wanted, have = fraction * len(text), sum(len(one.text) for one in validation)
            assert 0 < have < len(text)
            if spans is None:
                assert wanted / 2 - 13 <= have <= max(2 * wanted, len(text) / 10) + 13
            else:  # whole ones only
                assert have <= max(2 * wanted, len(text) / 10, min(sizes))


def test_what_is_evaluated_as_a_whole_counts_as_often_as_it_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    byte_level(tmp_path / "tokenizer")
    write_lines(tmp_path / "twice.jsonl", [{"text": "one"}, {"text": "two"}, {"text": "one"}])
    common = ("--tokenizer", tmp_path / "tokenizer", "--data", tmp_path / "twice.jsonl", "--out", tmp_path / "out")
    code, said = run(capsys, *common, "--validation-fraction", 1)
    assert code == 0 and "of 3 documents" in said
    code, said = run(capsys, *common, "--validation-fraction", 0.4)
    assert code == 0 and "of 2 documents" in said
    (tmp_path / "twice.jsonl").write_bytes(b'{"text": "a"}\n{"text": "\xff"}\n')
    code, said = run(capsys, *common)
    assert code == 1 and "twice.jsonl:2: is not UTF-8" in said


@pytest.mark.parametrize("in_file", [False, True])
def test_of_conversations_the_answers_are_learnt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], in_file: bool
) -> None:
    with_template(tmp_path / "tokenizer", CHAT_TEMPLATE, in_file)
    write_lines(tmp_path / "chat.jsonl", [{"messages": TALK}, {"prompt": "Say: ", "completion": "done."}, {"text": "all"}])
    out = tmp_path / "out"
    code, said = run(
        capsys, "--tokenizer", tmp_path / "tokenizer", "--data", tmp_path / "chat.jsonl", "--out", out,
        "--validation-fraction", 1,
    )
    assert code == 0, said
    whole, runs = decoded(out, "val")
    turns = "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in TALK)
    assert whole == f"{turns}<|endoftext|>Say: done.<|endoftext|>all<|endoftext|>"
    assert runs == ["A city. naïve?<|im_end|>\n", "x + 1<|im_end|>\n", "done.<|endoftext|>all<|endoftext|>"]
    facts = json.loads((out / "tokens.json").read_text())
    assert facts["has_context"] and facts["token_nbytes"] == 4
    learnt = sum(len(text.encode()) for text in ("A city. naïve?<|im_end|>\n", "x + 1<|im_end|>\n", "done.", "all"))
    tokens = numpy.fromfile(out / "val.bin", dtype="<u4")
    assert facts["validation_text_nbytes_per_token"] == learnt / int((tokens < tokenize.CONTEXT).sum())


# Its answers begin with a thought that it asks for in advance, or it forgets all but the last.
THINKS = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if thinks %}<think>\n{% else %}<think></think>{% endif %}{% endif %}"
)
DROPS_THOUGHTS = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] if loop.last or message['role'] != 'assistant' else '...' }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_what_a_line_tells_the_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_template(tmp_path / "tokenizer", "{% if tools %}[{{ tools | length }} tools]{% endif %}" + THINKS)
    lines = [{"messages": TALK, "chat_template_kwargs": {"thinks": True}}, {"messages": TALK[:3], "tools": [{"name": "f"}]}]
    write_lines(tmp_path / "chat.jsonl", lines)
    code, said = run(
        capsys, "--tokenizer", tmp_path / "tokenizer", "--data", tmp_path / "chat.jsonl", "--out", tmp_path / "out",
        "--validation-fraction", 1,
    )
    assert code == 0, said
    whole, runs = decoded(tmp_path / "out", "val")
    assert "[1 tools]" in whole and "think" not in whole
    # What is said is learnt where it is, though it was asked for in other words.
    answers = ["A city. naïve?<|im_end|>\n", "x + 1<|im_end|>\n", "A city. naïve?<|im_end|>\n"]
    assert sorted(runs) == sorted(answers)


def test_templates_are_rendered_as_transformers_does_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    template = (
        "{{ bos_token }}{% for message in messages %}\n    {%- if message['role'] == 'assistant' %}\n"
        "{% generation %}[{{ message['content'] | trim }}]{{ message | tojson }}{% endgeneration %}\n"
        "    {%- else %}\n({{ message['content'] }})\n    {% endif %}{% if loop.last %}{% break %}{% endif %}\n"
        "{% endfor %}{{ eos_token }}{% if tools is none %}-{% endif %}"
    )
    folder = tmp_path / "tokenizer"
    with_template(folder, template)
    settings = {"bos_token": {"content": "<s>"}, "eos_token": "<|endoftext|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder, bos_token="<s>", chat_template=template)
    ours = tokenize.ChatTemplate(folder)
    for asks in (False, True):
        wanted = theirs.apply_chat_template(TALK, tokenize=False, add_generation_prompt=asks)
        assert ours.render(TALK, asks) == wanted


@pytest.mark.parametrize(
    ("template", "lines", "said"),
    [
        (CHAT_TEMPLATE, [{"messages": "hello"}], 'chat.jsonl:1: "messages" is no list of objects'),
        (CHAT_TEMPLATE, [{"messages": [{"role": "user", "content": "hi"}]}], "chat.jsonl:1: the assistant says nothing"),
        (CHAT_TEMPLATE, [{"messages": [{"role": "assistant", "content": 5}]}], 'with "role" and "content"'),
        (CHAT_TEMPLATE, [{"prompt": "a"}], 'chat.jsonl:1: want "text" (--field of zerotorch.tokenize names another), "messages", or "prompt"'),
        (CHAT_TEMPLATE, [{"prompt": "a", "answer": None}], '"prompt" and "answer" are not both texts'),
        (CHAT_TEMPLATE, [{"messages": TALK}], "one conversation is too little"),
        (None, [{"messages": TALK}], "the tokenizer's folder has no chat template"),
        ("{% for %}", [{"messages": TALK}], "chat template is none"),
        ("{{ raise_exception('no system') }}", [{"messages": TALK}], "cannot write it: no system"),
        ("{{ messages[-1]['content'] }}", [{"messages": TALK}], "writes answer 1 in other words than it asks for it"),
        (DROPS_THOUGHTS, [{"messages": TALK}], "writes answer 1 in another way once the conversation goes on"),
        (CHAT_TEMPLATE, [{"messages": TALK, "text": "x"}], 'has "text" and "messages"; leave out'),
        (CHAT_TEMPLATE, [{"prompt": "a", "completion": "b", "text": "x"}], 'has "text" and "completion"; leave out'),
        (CHAT_TEMPLATE, [{"messages": TALK, "tools": "x"}], '"tools" is no list'),
        (CHAT_TEMPLATE, [{"messages": [*TALK[:2], {"role": "assistant", "content": None, "tool_calls": []}]}], 'message 3 has "tool_calls"'),
    ],
)
def test_conversations_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], template: object, lines: list[object], said: str
) -> None:
    with_template(tmp_path / "tokenizer", template)
    write_lines(tmp_path / "chat.jsonl", lines)
    code, text = run(
        capsys, "--tokenizer", tmp_path / "tokenizer", "--data", tmp_path / "chat.jsonl", "--out", tmp_path / "out"
    )
    assert code == 1 and said in text, text
    assert not (tmp_path / "out").exists()
