"""A bag-of-words text classifier in the manner of fastText."""

from typing import Annotated

from torch import Tensor, nn

from .base import Split, Task, positive, register, tokens

PADDING = 0


class FastText(nn.Module):
    """The mean of the token embeddings of a row, through one linear layer."""

    def __init__(self, vocabulary: int, features: int, ignore_padding: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, features, padding_idx=PADDING)
        self.linear = nn.Linear(features, features)
        self.ignore_padding = ignore_padding

    def forward(self, x: Tensor) -> Tensor:
        embedded: Tensor = self.embedding(x)
        if self.ignore_padding:
            # Masked, not assumed to be zero: averaging or noise on the server may change the
            # padding's row.
            real = (x != PADDING).unsqueeze(-1)
            count = real.sum(1).clamp(min=1)  # at least 1: a row may be all padding
            mean = (embedded * real).sum(1) / count
        else:
            mean = embedded.mean(1)
        features: Tensor = self.linear(mean)
        return features


@register("fasttext")
def fasttext(
    task: Task,
    *,
    features: Annotated[int, "Width of the embeddings and of the feature vector."] = 32,
    ignore_padding: Annotated[bool, "Leave padding out of the mean over tokens."] = False,
) -> Split:
    """The mean of a text's token embeddings through one linear layer, as in fastText."""
    positive("fasttext", features=features)
    body = FastText(tokens("fasttext", task), features, ignore_padding)
    return Split(body, nn.Linear(features, task.classes), features)
