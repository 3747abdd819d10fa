"""Insert contexts into existing networks by module name, and remove them again."""

from hamburger.insertion.insert import insert_context, remove_contexts
from hamburger.insertion.inserted import Gate, InsertedContext
from hamburger.insertion.replace_attention import ReplacedAttention, replace_attention

__all__ = ["Gate", "InsertedContext", "ReplacedAttention", "insert_context", "remove_contexts", "replace_attention"]
