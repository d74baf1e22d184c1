"""Text to tokens and back for any chat policy, and the training of the tiny policy's tokenizer.

Whatever the engine sees is put together from token pieces that are never tokenised again. What goes
around a message is derived once by rendering the policy's own chat template. The message itself is
encoded with special tokens taken literally, so that a command's output cannot open a turn of its
own. Needs only the tokenizers library and jinja2: importing transformers would cost seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from harness.protocols import UsageError

PAD, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Digits, operators and words with their leading blank stand alone: the operands of an edit command
# are then copied from the source as single tokens.
_PIECES = r"\d+| ?[A-Za-z]+|_[A-Za-z]+| ?(?:<=|>=|==|!=|\+=|-=|\*=|//)| ?[^\sA-Za-z\d]|\s+"
_USER, _ASSISTANT = "\N{SNOWMAN}user", "\N{SNOWMAN}assistant"


class _Around(NamedTuple):
    """Tokens before and after a message, and text that is encoded together with it."""

    before: list[int]
    head: str
    tail: str
    after: list[int]


class ChatTokens:
    """The token side of a Hugging Face folder (tokenizer.json and a chat template). `template` is a
    file that stands for the folder's own template."""

    def __init__(self, path: str | Path, template: str | Path | None = None) -> None:
        folder = Path(path)
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise UsageError(
                f"policy={folder}: no tokenizer.json there; give a Hugging Face folder"
            )
        self._tokenizer = Tokenizer.from_file(str(file))
        self._literal = Tokenizer.from_file(str(file))
        self._literal.encode_special_tokens = True
        render = _renderer(folder, chat_template(folder, template))
        user = {"role": "user", "content": _USER}
        opening = render([user])
        dialogue = render([user, {"role": "assistant", "content": _ASSISTANT}, user])
        before, found, after = opening.partition(_USER)
        _, answered, tail = dialogue.partition(_ASSISTANT)
        between, asked, header = tail.partition(_USER)
        if not (found and answered and asked):
            raise UsageError(f"policy={folder}: its chat template leaves out a message's content")
        stop, *_ = self._encode(between)
        added = self._tokenizer.get_added_tokens_decoder()
        if stop not in added:
            raise UsageError(
                f"policy={folder}: its chat template ends an answer with {between!r}, "
                "not with a special token; the engine could not tell where an action ends"
            )
        self.stop_tokens: tuple[int, ...] = (stop,)
        self.vocab_size: int = self._tokenizer.get_vocab_size()
        self._special = set(added)
        self._opening, self._going_on = self._around(before, after), self._around(between, header)
        if not self._as_rendered(render):
            raise UsageError(
                f"policy={folder}: its chat template runs into a message in a way that its pieces "
                "cannot follow; give another by policy.chat_template=FILE.jinja"
            )

    def first(self, message: str) -> list[int]:
        """The opening context: everything up to and including the assistant's header."""
        return self._within(self._opening, message)

    def observation(self, text: str) -> list[int]:
        """What follows an action's stop token, up to and including the next assistant header."""
        return self._within(self._going_on, text)[1:]

    def action(self, text: str) -> list[int]:
        """An action as the policy would have to generate it, stop token included."""
        return [*self._text(text), self.stop_tokens[0]]

    def decode_action(self, tokens: Sequence[int]) -> str:
        """The action's text: final stop token off, other special tokens kept literally, bytes that
        are no UTF-8 replaced by U+FFFD."""
        kept = tokens[:-1] if tokens and tokens[-1] in self.stop_tokens else tokens
        return self._tokenizer.decode(list(kept), skip_special_tokens=False)

    def _around(self, before: str, after: str) -> _Around:
        """What goes around a message. A message begins a line, or else the text that no special
        token parts from it is encoded together with it: a blank is one token with the word that
        follows."""
        cut = max((end for _, end in self._specials(before)), default=0)
        if before[cut:].endswith("\n") or cut == len(before):
            return _Around(self._encode(before), "", "", self._encode(after))
        start = min((start for start, _ in self._specials(after)), default=len(after))
        return _Around(
            self._encode(before[:cut]), before[cut:], after[:start], self._encode(after[start:])
        )

    def _specials(self, text: str) -> list[tuple[int, int]]:
        """Where the special tokens of a text are."""
        found = self._tokenizer.encode(text, add_special_tokens=False)
        pairs = zip(found.ids, found.offsets, strict=True)
        return [offsets for token, offsets in pairs if token in self._special]

    def _within(self, around: _Around, message: str) -> list[int]:
        text = around.head + message + around.tail
        return around.before + self._text(text) + around.after

    def _as_rendered(self, render: Any) -> bool:
        """Whether messages get the tokens that they have in the template's own rendering."""
        asked, seen = "Fix area_x (a bug).\nFiles: a/b.py", "exit 1"
        dialogue = [("user", asked), ("assistant", "ls"), ("user", seen)]
        messages = [{"role": role, "content": content} for role, content in dialogue]
        observation = self.observation(seen)
        whole = self._encode(render(messages))
        opening = self._encode(render(messages[:1]))
        return opening == self.first(asked) and whole[-len(observation) :] == observation

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _text(self, text: str) -> list[int]:
        return self._literal.encode(text, add_special_tokens=False).ids


def _config(folder: Path) -> dict[str, Any]:
    file = folder / "tokenizer_config.json"
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}


def chat_template(folder: Path, given: str | Path | None = None) -> str:
    """The text of a folder's chat template, or of the file that is `given` instead. Raises
    UsageError where there is none."""
    if given is not None:
        return Path(given).expanduser().read_text("utf-8")
    file = folder / "chat_template.jinja"
    template = file.read_text("utf-8") if file.is_file() else _config(folder).get("chat_template")
    if isinstance(template, list):  # several named templates
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if not template:
        raise UsageError(
            f"policy={folder}: its tokenizer has no chat template; give one by "
            "policy.chat_template=FILE.jinja, or take an instruction-tuned model"
        )
    return template


def _renderer(folder: Path, template: str) -> Any:
    """A function from messages to the rendered text with the assistant's header at its end."""
    config = _config(folder)

    def refuse(message: str) -> None:
        raise UsageError(f"policy={folder}: its chat template says: {message}")

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **kw: json.dumps(value, ensure_ascii=False, **kw)
    environment.globals["raise_exception"] = refuse
    try:
        compiled = environment.from_string(template)
    except TemplateError as error:
        raise UsageError(f"policy={folder}: its chat template is no template ({error})") from error
    special = {
        name: value["content"] if isinstance(value, dict) else value
        for name, value in config.items()
        if name.endswith("_token") and value
    }

    def render(messages: list[dict[str, str]]) -> str:
        try:
            return compiled.render(
                messages=messages, add_generation_prompt=True, enable_thinking=False, **special
            )
        except TemplateError as error:
            raise UsageError(
                f"policy={folder}: its chat template cannot be rendered ({error}); give another by "
                "policy.chat_template=FILE.jinja"
            ) from error

    return render


def train_tokenizer(texts: Iterable[str], out: Path, *, vocab_size: int, context: int) -> None:
    """Train a byte-level BPE on `texts`; write tokenizer.json and its config to `out`."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_PIECES), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    # The libraries' stubs leave these two properties out.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "eos_token": TURN_END,
        "pad_token": PAD,
        "additional_special_tokens": [TURN_START, TURN_END],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(config, indent=2) + "\n"
    (out / "tokenizer_config.json").write_text(text, encoding="utf-8")
