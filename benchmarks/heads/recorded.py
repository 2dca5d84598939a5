"""Recorded texts of the real pair, with a played head of the published agreement beside the target.
python -m benchmarks.heads.recorded TEXTS.json T [tokens] [each]"""
import sys
from collections import deque
from functools import partial
from itertools import pairwise
from pathlib import Path
import numpy as np
from benchmarks.own_texts import load_model, own_texts, read_prompts
from benchmarks.regret import study
from benchmarks.regret.prefixes import EMPTY
from benchmarks.regret.recorded import RecordedTarget, kinds, row, speeds, Played
from benchmarks.regret.stage import *
from benchmarks.regret.stage import _drafting
from benchmarks.regret.study import Result, read
from benchmarks.regret.pair import PathModel, drawn
from benchmarks.regret.virtual import MeteredModel, VirtualServer
from benchmarks.regret.clock import Signal, VirtualClock
from inference.backends import Chosen, Masks, Ranked
from inference.drafters.draft import Draft
from inference.engine.colocated.drafter import ColocatedDrafter
from inference.engine.engine import Engine
from inference.loop.draft_thread import inline
from inference.loop.draft_tuning import TUNING
from inference.order import Decode
from inference.times import Times
from inference.planner.acceptance import PairStats
from inference.planner.acceptance_file import read_acceptance
MASK, BLOCK = 151643, 16
# chance that the likeliest guess of an offset is right if all before were: geometric, from published chains
# (DFlash, Qwen3-4B, T = 0: 6.7 tokens a pass on code, 3.4 in chat; T = 1: 0.84 of that)
AGREE = {("code", 0.0): .865, ("chat", 0.0): .71, ("code", .8): .835, ("chat", .8): .65}
SIBLINGS = .6  # share of misses that are among the next seven
class Head(PathModel):
    masks = branches = True
    def __init__(self, target, texts, temperature, call, clock):
        super().__init__(target._number, 1)
        self.max_nodes, self.call, self.clock, self.calls = 1024, call, clock, 0
        self.at, self.kind, self.T = {}, {}, temperature
        for text in texts:
            prefix, whole = EMPTY, (*text.prompt, *text.tokens)
            for i, token in enumerate(whole):
                prefix = target._number(prefix, token)
                if i >= len(text.prompt) - 1:
                    self.at[prefix] = (whole, i, AGREE[text.kind, temperature]); self.kind[prefix] = text.kind
    def padded(self, rows, nodes): return rows, BLOCK
    def choose(self, segments):
        for one in segments: self._picked(one)
        return [Chosen(np.zeros(len(one.pick), dtype=np.int32)) for one in segments]
    def rank(self, segments, k):
        self.calls += 1
        self.clock.advance(self.call)
        out = []
        for one in segments:
            root = self._picked(one)[0]
            whole, i, mean = self.at[root]
            ids = np.zeros((len(one.pick), k), dtype=np.int32); scores = np.zeros((len(one.pick), k), dtype=np.float32)
            for o in range(len(one.pick)):
                truth = whole[i + 1 + o] if i + 1 + o < len(whole) else 7
                rng = np.random.default_rng([root, o])
                # calibrated confidence with this mean: mostly sure, sometimes not
                sure = rng.random() < (mean - .35) / (.97 - .35)
                c = .97 if sure else .35
                rest = [(1 - c) * (SIBLINGS if not sure else .6) * w for w in (.4, .2, .13, .1, .07, .06, .04)]
                chances = np.array([c, *rest][:k] + [1e-5] * max(0, k - 8))
                draw, place = rng.random(), k
                for j, q in enumerate(chances):
                    if draw < q: place = j; break
                    draw -= q
                junk = [1000 + (root * 31 + o * 7 + j) % 100000 for j in range(k)]
                if place < k: junk[place] = truth
                ids[o], scores[o] = junk, np.log(chances)
            out.append(Ranked(ids, scores))
        return out
# chance that the likeliest child is the target's, by node of the path (an EAGLE-3 head; a tree of 64: 4.1 tokens)
LEVEL = {("code", 0.0): .75, ("chat", 0.0): .66, ("code", .8): .70, ("chat", .8): .62}
class Eagle(Head):
    """A level a call: ranks any node of the path; nodes off it get junk."""
    masks = False
    def padded(self, rows, nodes): return rows, nodes
    def rank(self, segments, k):
        self.calls += 1
        self.clock.advance(self.call)
        out = []
        for one in segments:
            ids = np.zeros((len(one.pick), k), dtype=np.int32); scores = np.zeros((len(one.pick), k), dtype=np.float32)
            for o, prefix in enumerate(self._picked(one)):
                rng = np.random.default_rng([prefix, 77])
                known = self.at.get(prefix)
                mean = LEVEL["code", 0.0] if known is None else LEVEL[self.kind[prefix], self.T]
                sure = rng.random() < (mean - .4) / (.97 - .4)
                c = .97 if sure else .4
                rest = [(1 - c) * .8 * w for w in (.4, .2, .13, .1, .07, .06, .04)]
                chances = np.array([c, *rest][:k] + [1e-5] * max(0, k - 8))
                draw, place = rng.random(), k
                for j, q in enumerate(chances):
                    if draw < q: place = j; break
                    draw -= q
                junk = [1000 + (prefix * 31 + j) % 100000 for j in range(k)]
                if known is not None and place < k:
                    whole, i, _ = known
                    junk[place] = whole[i + 1] if i + 1 < len(whole) else 7
                ids[o], scores[o] = junk, np.log(chances)
            out.append(Ranked(ids, scores))
        return out
def play(name, propose, texts, temperature, draft, vocabulary, call=None, copies=True, trip=.02):
    clock = VirtualClock()
    recorded = RecordedTarget(texts, 1)
    metered = MeteredModel(recorded, PROFILES.target, clock.advance)
    times = Times(PROFILES.target.table(CONTEXT), measured=True)
    drafter, head = None, None
    if call is not None:
        head = (Eagle if name.startswith('eagle') else Head)(recorded, texts, temperature, call, clock)
        know = lambda: PairStats(Times({(1, n): call for n in (1, 2, 4, 8, 16, 32, 64, 128)}, measured=True), times, read_acceptance())
        drafter = ColocatedDrafter(Draft(head, None if name.startswith("eagle") else Masks(MASK, BLOCK - 2, below_root=True)), know, room=TUNING.room, copies=copies, clock=clock.now)
    engine = Engine(metered, sequence_length=SEQUENCE_LENGTH, max_tree_nodes=1 + MOST_NODES, vocabulary=vocabulary, times=times, drafter=drafter, clock=clock.now)
    server = VirtualServer(clock, engine)
    study.Decode = partial(Decode, beside=call is not None)
    stage = Stage(server, draft, trip, PROFILES, 0)
    made, end = {}, Signal()
    def use():
        try:
            d = inline(propose(stage))
            for i, text in enumerate(texts): made[i] = read(name, d, stage, text)
        finally: clock.notify(end)
    clock.start(use); clock.wait(end)
    assert len(made) == len(texts), name
    return Played(Result(tuple(made[i] for i in range(len(texts)))), clock.now())
def main():
    file, T = Path(sys.argv[1]), float(sys.argv[2]); tokens = int((sys.argv + [0]*5)[3] or 128); each = int((sys.argv + [0]*5)[4] or 8)
    found, draft = load_model("/work/bench/qwen2.5-coder-0.5b-bf16", 1, "int8")
    prompts = read_prompts(found.tokenizer, Path("/work/bench/prompts/sixty.jsonl"), each)
    texts = own_texts("/work/bench/qwen2.5-coder-1.5b-bf16", prompts, T, tokens, file)
    if "record" in sys.argv: return
    V = found.tokenizer.vocabulary
    alone = None
    for name, propose, call in (("target-only", lambda s: [], None), ("hybrid laptop", HYBRID.propose, None), ("eagle 1.9 ms", lambda s: [], .0019), ("eagle 1.9 + laptop", HYBRID.propose, .0019), ("head 4 ms", lambda s: [], .004), ("head 7.7 ms", lambda s: [], .0077),
                                ("head 7.7 + laptop", HYBRID.propose, .0077), ("head 4 + laptop", HYBRID.propose, .004)):
        p = play(name, propose, texts, T, draft, V, call)
        alone = alone or p
        r = p.result
        print(f"T={T} {name}: {r.token_ms:.1f} ms a token, {1/r.each('forwards'):.2f} tokens a pass, {p.rate/alone.rate:.2f}x, least {min(speeds(p, alone)):.2f}", [" ".join(l) for l in kinds(texts, speeds(p, alone))], flush=True)
main()
