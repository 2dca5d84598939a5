import torch, sys
from pathlib import Path
from benchmarks.training.block_head import _guesses
from benchmarks.training.head import computed
from benchmarks.harness import cpu_decoder
from benchmarks.regret.texts import PROMPTS
from inference.model.block_head import read_block_head
from inference.model.eagle_head import OfTarget
from inference.text.tokenizer import Tokenizer
from outrider.models.directories import EMBEDDED
torch.set_num_threads(1)
tok = Tokenizer(EMBEDDED / "target")
target = cpu_decoder(EMBEDDED / "target", 1024, tok.vocabulary, torch.float32)
heads = {d: read_block_head(Path(d), OfTarget.of(target), 1024) for d in sys.argv[1:]}
@torch.no_grad()
def text(prompt, n=96):
    ids = tok.encode(prompt)[-300:]
    for _ in range(n):
        _, logits = computed(target, torch.tensor([ids]), (2,))
        ids.append(int(logits[0, -1].argmax()))
    return ids
for d, head in heads.items():
    kept = head.config.kept; total = []; ranks = torch.zeros(7, 9)
    for p in PROMPTS:
        ids = text(p); t = torch.tensor([ids]); start = len(ids) - 97
        states, logits = computed(target, t, kept)
        starts = torch.arange(start, len(ids) - 8)[None]
        places = (starts[..., None] + torch.arange(8)).view(1, -1)
        with torch.no_grad(): g = _guesses(head, t, states, starts, places).view(len(starts[0]), 7, -1)
        truth = t[0][(starts[0][:, None] + 1 + torch.arange(7))]
        right = (g.argmax(-1) == truth)
        total += right.long().cumprod(1).sum(1).tolist()
        order = g.argsort(-1, descending=True)
        r = (order == truth[..., None]).float().argmax(-1)
        for o in range(7):
            for x in r[:, o].tolist(): ranks[o, min(x, 8)] += 1
    ranks /= ranks.sum(1, keepdim=True)
    print(d, "chain: tokens a pass", 1 + sum(total)/len(total)); print("first right, in 8 by offset:", [f"{ranks[o,0]:.2f} {ranks[o,:8].sum():.2f}" for o in range(7)])
