"""Text to tokens: a folder that `zero train --data` reads, made with a tokenizer of Hugging Face's.

python -m zerotorch.tokenize --tokenizer FOLDER --data PATH --out DIR

Documents (files, or the lines of JSONL) are put in an order that depends on the seed, split into training and
validation, tokenized, and written one after the other, each followed by the tokenizer's end-of-text token. A line of
JSONL is a text ("text"), a conversation ("messages", each with "role" and "content", written by the folder's chat
template), or a "prompt" with its "completion" ("answer", "response"). Of the last two only what the assistant says is
learnt, with the token that ends it; the rest is context.

    train.bin, val.bin   tokens of 2 bytes, or of 4 for vocabularies over 65,536 and where some are context, which have
                         bit 31 set; little-endian
    pieces.json          the bytes of each token, hexadecimal, by which samples are printed
    tokens.json          what they are
"""

from __future__ import annotations

import argparse
import array
import datetime
import hashlib
import json
import os
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["main"]

AT_A_TIME = 4 << 20  # characters that are tokenized together
OWN_FILES = {"train.bin", "val.bin", "pieces.json", "tokens.json"}
LARGEST_PIECE = 1 << 20  # characters of a document that are tokenized as one
CONTEXT = 1 << 31  # set in tokens that are context only
COMPLETIONS = ("completion", "answer", "response")


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


class Document(NamedTuple):
    text: str
    learnt: tuple[tuple[int, int], ...] | None = None  # characters [begin, end); None: all
    ends: bool = True  # the token after it is learnt, too

    def digest(self) -> bytes:
        return hashlib.blake2b(repr(self).encode("utf-8", "surrogatepass"), digest_size=16).digest()

    def learnt_nbytes(self) -> int:
        spans = [(0, len(self.text))] if self.learnt is None else self.learnt
        return sum(len(self.text[begin:end].encode()) for begin, end in spans)


class ChatTemplate:
    """The folder's Jinja template, rendered as transformers does it."""

    def __init__(self, folder: Path) -> None:
        self.tokens: dict[str, str] = {}
        self.source = self._source(folder)
        self.template: Any = None

    def _source(self, folder: Path) -> str | None:
        settings: dict[str, Any] = {}
        config = folder / "tokenizer_config.json"
        if config.exists():
            try:
                settings = dict(json.loads(config.read_text()))
            except (ValueError, TypeError):
                raise Refused(f"{config}: is not a JSON object") from None
        for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
            token = settings.get(name)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                self.tokens[name] = token
        file = folder / "chat_template.jinja"
        if file.exists():
            return file.read_text()
        template = settings.get("chat_template")
        if isinstance(template, list):
            template = {one["name"]: one["template"] for one in template}.get("default")
        return template if isinstance(template, str) else None

    def _compiled(self) -> Any:
        if self.template is None:
            try:
                import jinja2
                from jinja2.ext import Extension, loopcontrols
                from jinja2.sandbox import ImmutableSandboxedEnvironment
            except ImportError:
                raise Refused("conversations need the package jinja2: pip install jinja2") from None

            class Generation(Extension):  # {% generation %} ... {% endgeneration %}: only what is in it
                tags = {"generation"}

                def parse(self, parser: Any) -> Any:
                    next(parser.stream)
                    return parser.parse_statements(("name:endgeneration",), drop_needle=True)

            def refuse(message: str) -> None:
                raise jinja2.exceptions.TemplateError(message)

            environment = ImmutableSandboxedEnvironment(
                trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
            )
            environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
            environment.globals["raise_exception"] = refuse
            environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
            try:
                self.template = environment.from_string(self.source or "")
            except jinja2.exceptions.TemplateError as error:
                raise Refused(f"the tokenizer's chat template is none: {error}") from None
        return self.template

    def render(self, messages: list[Any], asks: bool, more: dict[str, Any] | None = None) -> str:
        """`asks`: up to where the assistant begins to speak. `more`: what else the template is told."""
        told = {"tools": None, "documents": None} | self.tokens | (more or {})
        return str(self._compiled().render(messages=messages, add_generation_prompt=asks, **told))


def told_to_template(line: dict[str, Any], where: str) -> dict[str, Any]:
    """What a line says besides its messages, under the names that transformers and trl have for it."""
    more = line.get("chat_template_kwargs", {})
    if not isinstance(more, dict) or "messages" in more or "add_generation_prompt" in more:
        raise Refused(f'{where}: "chat_template_kwargs" is no object of what a template is told besides its messages')
    tools = line.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise Refused(f'{where}: "tools" is no list')
    return ({"tools": tools} if tools else {}) | more


def answer_in(template: ChatTemplate, messages: list[Any], at: int, more: dict[str, Any]) -> tuple[int, str] | None:
    """Where the assistant begins in message `at`, and the conversation up to its end; None: nobody can say."""
    after = template.render(messages[: at + 1], False, more)
    asked = template.render(messages[:at], True, more)
    if after.startswith(asked):
        return len(asked), after
    # It is asked for in other words than it is written in; what it says is there as it was given.
    before, said = template.render(messages[:at], False, more), messages[at]["content"].strip()
    if not said or not after.startswith(before) or after.count(said, len(before)) != 1:
        return None
    return after.find(said, len(before)), after


def conversation_of(line: dict[str, Any], template: ChatTemplate, where: str) -> Document:
    messages = line["messages"]
    if isinstance(messages, list):
        for number, one in enumerate(messages, 1):
            if isinstance(one, dict) and one.get("content") is None and "tool_calls" in one:
                raise Refused(f'{where}: message {number} has "tool_calls" and no "content": calls of tools are not built')
    well_made = isinstance(messages, list) and all(
        isinstance(one, dict) and isinstance(one.get("role"), str) and isinstance(one.get("content"), str)
        for one in messages
    )
    if not well_made or not messages:
        raise Refused(f'{where}: "messages" is no list of objects with "role" and "content"')
    if template.source is None:
        raise Refused(f"{where}: a conversation, and the tokenizer's folder has no chat template to write it with")
    if all(one["role"] != "assistant" for one in messages):
        raise Refused(f"{where}: the assistant says nothing in it")
    more = told_to_template(line, where)
    try:
        whole = template.render(messages, False, more)
        spans: list[tuple[int, int]] = []
        for at, one in enumerate(messages):
            if one["role"] != "assistant":
                continue
            answer = answer_in(template, messages, at, more)
            if answer is None:
                raise Refused(
                    f"{where}: the chat template writes answer {len(spans) + 1} in other words than it asks for it, so "
                    "that nobody can say what of it is learnt"
                )
            begin, after = answer
            if not whole.startswith(after):
                raise Refused(
                    f"{where}: the chat template writes answer {len(spans) + 1} in another way once the conversation "
                    "goes on, so that nobody can say what of it is learnt; give each answer a line of its own"
                )
            spans.append((begin, len(after)))
    except Refused:
        raise
    except Exception as error:  # noqa: BLE001 - templates raise anything
        raise Refused(f"{where}: the chat template cannot write it: {error}") from None
    return Document(whole, tuple(spans), ends=False)


def document_of(line: Any, field: str, template: ChatTemplate, where: str) -> Document:
    if not isinstance(line, dict):
        raise Refused(f"{where}: want a JSON object")
    if field in line:
        others = [name for name in ("messages", *COMPLETIONS) if name in line and name != field]
        if "messages" in line or ("prompt" in line and others):
            raise Refused(f'{where}: has "{field}" and "{others[0]}"; leave out what is not meant')
        if not isinstance(line[field], str):
            raise Refused(f'{where}: "{field}" is not a text')
        return Document(line[field])
    if "messages" in line:
        return conversation_of(line, template, where)
    completion = next((name for name in COMPLETIONS if name in line), None)
    if "prompt" in line and completion:
        prompt, answer = line["prompt"], line[completion]
        if not isinstance(prompt, str) or not isinstance(answer, str):
            raise Refused(f'{where}: "prompt" and "{completion}" are not both texts')
        return Document(prompt + answer, ((len(prompt), len(prompt) + len(answer)),))
    raise Refused(
        f'{where}: want "{field}" (--field of zerotorch.tokenize names another), "messages", or "prompt" and one of {", ".join(COMPLETIONS)}'
    )


def lines_of(path: Path, field: str, template: ChatTemplate) -> Iterator[Document]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                decoded = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError as error:
                raise Refused(f"{where}: is not UTF-8: {error.reason}") from None
            except json.JSONDecodeError:
                raise Refused(f"{where}: want a JSON object") from None
            document = document_of(decoded, field, template, where)
            try:
                document.text.encode()
            except UnicodeEncodeError as error:
                raise Refused(f"{where}: is not Unicode: {error.reason}") from None
            yield document


def documents_of(
    files: list[Path], field: str, template: ChatTemplate, *, once: bool
) -> tuple[list[Document], list[Path]]:
    """The documents, each `once` if so wished, and the files that were left out."""
    documents, seen, left_out = [], set(), []
    for path in files:
        if path.suffix == ".jsonl":
            some: Iterator[Document] = lines_of(path, field, template)
        else:
            text = text_of(path)
            left_out += [path] if text is None else []
            some = iter([] if text is None else [Document(text)])
        for document in some:
            digest = document.digest()
            if document.text and not (once and digest in seen):
                seen.add(digest)
                documents.append(document)
    return documents, left_out


def cut(document: Document) -> Iterator[str]:
    """Large ones in pieces that end with a line; those with context as they are."""
    text = document.text
    while document.learnt is None and len(text) > LARGEST_PIECE:
        end = text.rfind("\n", 0, LARGEST_PIECE) + 1 or LARGEST_PIECE
        yield text[:end]
        text = text[end:]
    yield text


def with_context(document: Document, encoded: Any) -> list[int]:
    """Its tokens; those that begin outside of what is learnt are marked."""
    spans = document.learnt or ()
    return [
        token if any(begin <= first < end for begin, end in spans) else token | CONTEXT
        for token, (first, _) in zip(encoded.ids, encoded.offsets)
    ]


def write_split(tokenizer: Any, documents: list[Document], end: int, code: str, path: Path) -> tuple[int, int]:
    """Returns the number of tokens, and of those that are learnt."""
    count, context, begin = 0, 0, 0
    with path.open("wb") as out:
        while begin < len(documents):
            last, size = begin, 0
            while last < len(documents) and size < AT_A_TIME:
                size += len(documents[last].text)
                last += 1
            some = [(document, [*cut(document)]) for document in documents[begin:last]]
            try:
                encoded = iter(
                    tokenizer.encode_batch([piece for _, pieces in some for piece in pieces], add_special_tokens=False)
                )
            except Exception as error:  # noqa: BLE001 - it raises nothing better
                raise Refused(f"the tokenizer cannot encode the text: {error}") from None
            tokens = array.array(code)
            for document, pieces in some:
                for _ in pieces:
                    piece = next(encoded)
                    tokens.extend(piece.ids if document.learnt is None else with_context(document, piece))
                tokens.append(end if document.ends else end | CONTEXT)
            context += sum(token >= CONTEXT for token in tokens)
            if sys.byteorder == "big":
                tokens.byteswap()
            tokens.tofile(out)
            count += len(tokens)
            begin = last
    return count, count - context


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


def split_of(documents: list[Document], fraction: float, seed: int) -> tuple[list[Document], list[Document]]:
    """Training and validation, which gets about `fraction` of the text: whole documents, or the end of the largest one
    where whole ones would be too much or too little."""
    if fraction == 1:
        return [], documents
    if len(documents) == 1 and documents[0].learnt is not None:
        raise Refused("one conversation is too little: there must be another one to validate on")
    random.Random(seed).shuffle(documents)
    wanted = fraction * sum(len(document.text) for document in documents)
    count, have = first_ones(documents, wanted)
    if have >= wanted / 2:
        return documents[count:], documents[:count]
    # One that is not much: whole documents are worth more than the right size.
    most = max(2 * wanted, sum(len(document.text) for document in documents) / 10)
    whole = [document for document in documents if wanted / 2 <= len(document.text) <= most]
    if whole:
        best = min(whole, key=lambda document: abs(len(document.text) - wanted))
        return [document for document in documents if document is not best], [best]
    texts = [document for document in documents if document.learnt is None]
    largest = max(texts, key=lambda document: len(document.text), default=None)
    if largest is not None and len(largest.text) > wanted:
        at = cut_at(largest.text, wanted)
        return [*(one for one in documents if one is not largest), Document(largest.text[:at])], [Document(largest.text[at:])]
    # Conversations stay whole: those that fit, or the smallest.
    fitting: list[Document] = []
    left = wanted
    for document in documents:
        if len(document.text) <= left:
            fitting.append(document)
            left -= len(document.text)
    fitting = fitting or [min(documents, key=lambda document: len(document.text))]
    kept = {id(document) for document in fitting}
    return [document for document in documents if id(document) not in kept], fitting


def first_ones(documents: list[Document], wanted: float) -> tuple[int, int]:
    """How many of the first documents, at most all but one, come closest to `wanted` characters, and how many these have;
    none where the first alone is further away than nothing."""
    count, have, total = 0, 0, 0
    for number, document in enumerate(documents[:-1], 1):
        if total >= wanted:
            break
        total += len(document.text)
        if abs(total - wanted) < abs(have - wanted):
            count, have = number, total
    return count, have


def cut_at(text: str, tail: float) -> int:
    """Where to cut a text so that about `tail` characters are after it: after a line, where one ends nearby."""
    at = min(len(text) - 1, max(1, round(len(text) - tail)))
    line = text.rfind("\n", 0, at) + 1
    return line if line > at / 2 else at


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
    given = ["5", options.field, options.separator, options.validation_fraction, options.seed, str(options.tokenizer.resolve())]
    tokenizer = options.tokenizer / "tokenizer.json" if options.tokenizer.is_dir() else options.tokenizer
    settings = tokenizer.parent / "tokenizer_config.json"
    template = tokenizer.parent / "chat_template.jinja"
    used = [tokenizer, *(path for path in (settings, template) if path.exists()), *files]
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
    # What is evaluated as a whole counts as often as it is there.
    once = options.validation_fraction < 1
    documents, left_out = documents_of(files, options.field, ChatTemplate(folder), once=once)
    if not documents:
        raise Refused(f"--data {options.data}: has no text (UTF-8)")
    train, validation = split_of(documents, options.validation_fraction, options.seed)
    pieces = pieces_of(tokenizer)
    has_context = any(document.learnt is not None for document in documents)
    code = "H" if len(pieces) <= 1 << 16 and not has_context else "I"
    temporary = out.with_name(f"{out.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    try:
        counts = [
            write_split(tokenizer, part, end, code, temporary / name)
            for part, name in ((train, "train.bin"), (validation, "val.bin"))
        ]
        text_nbytes = sum(document.learnt_nbytes() for document in validation)
        text_nbytes_per_token = text_nbytes / max(1, counts[1][1])
        (temporary / "pieces.json").write_text(json.dumps(pieces))
        (temporary / "tokens.json").write_text(
            json.dumps(
                {
                    "token_nbytes": array.array(code).itemsize,
                    "vocab": len(pieces),
                    "separator": end,
                    "has_context": has_context,
                    "train_tokens": counts[0][0],
                    "validation_tokens": counts[1][0],
                    "validation_text_nbytes_per_token": text_nbytes_per_token,
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
    skipped = f"{len(left_out)} files left out: not UTF-8: {left_out[0]}" if left_out else ""
    skipped += ", ..." if len(left_out) > 1 else ""
    if options.keep:
        return f"tokens of {options.data}: {skipped}" if left_out else ""
    skipped = f"; {skipped}" if left_out else ""
    learnt = f"; {counts[0][1]:,} and {counts[1][1]:,} of them are learnt" if has_context else ""
    return (
        f"{out}: {counts[0][0]:,} tokens to train on, {counts[1][0]:,} to validate on, of {len(documents):,} documents"
        f"{learnt}; a token is {text_nbytes_per_token:.2f} bytes{skipped}"
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
    parser.add_argument("--field", default="text", help='of texts in JSONL (default: "text")')
    parser.add_argument("--separator", help="the token after each document (default: the tokenizer's end of text)")
    parser.add_argument("--validation-fraction", type=fraction, default=0.05, help="about this much of the text (default 0.05), in whole documents or the end of the largest; 1: all")
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
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
