"""verl's single-turn agent loop for any tokenizer."""

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop.agent_loop import register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop


@register("coba_text")
class TextAgentLoop(SingleTurnAgentLoop):
    """One prompt, one completion, whatever tokens the vocabulary holds.

    verl chooses how to join the turns of a conversation by the model's type, and then insists on the marks
    between them: a Qwen2 tokenizer without `<|im_end|>` and a newline is refused, even where there is one turn.
    """

    def __init__(self, *args: Any, hf_model_type: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, hf_model_type=None, **kwargs)
