"""Plays texts of the embedded target on a virtual clock with trn1's times, with drafts beside it.
python -m benchmarks.heads.embedded NAME[=DIR] ...; NAME: none, model, eagle, dflash"""
import sys
from functools import partial
from pathlib import Path
import torch, numpy as np
from benchmarks.regret.texts import PROMPTS
from inference.backends.eager import EagerModel
from inference.backends.eagle_model import EagleModel
from inference.backends.block_head_model import BlockHeadModel
from inference.backends.target_features import FeatureSequence
from inference.loop.draft_tuning import TUNING
from inference.drafters.draft import Draft
from inference.engine.colocated.drafter import ColocatedDrafter
from inference.engine.engine import Engine
from inference.model.checkpoints.checkpoint import load_decoder
from inference.model.block_head import read_block_head
from inference.model.eagle_head import OfTarget, read_head
from inference.order import Decode
from inference.planner.acceptance import PairStats as Knowledge
from inference.planner.acceptance_file import read_acceptance
from inference.sampling import SamplingParams
from inference.text.tokenizer import Tokenizer
from inference.times import Times, Table
from inference.times_file import *
from outrider.models.directories import EMBEDDED
from tests.support.clock import Clock
from tests.support.exact import asked, finish
torch.set_num_threads(1)
LENGTH, TOKENS = 512, 96
CALLS = {"model": .0078, "eagle": .0019, "dflash": float(__import__("os").environ.get("CALL", ".0077"))}
def forward(nodes): return .0366 + .0002 * nodes
tok = Tokenizer(EMBEDDED / "target")
def load(which): return load_decoder(EMBEDDED/which, positions=1024, vocabulary=tok.vocabulary, dtype=torch.float32, device=torch.device("cpu"))
TARGET = load("target")
def play(name, directory, temperature):
    clock = Clock()
    class Target(EagerModel):
        def choose(self, segments):
            clock.now += forward(max(len(s.tokens) for s in segments)); return super().choose(segments)
    target = Target(TARGET, rows=1, capacity=LENGTH+64, max_nodes=64)
    draft = None
    def timed(cls):
        class Timed(cls):
            def rank(self, segments, k):
                clock.now += CALLS[name]; return super().rank(segments, k)
        return Timed
    size = dict(rows=1, capacity=LENGTH+TUNING.room, max_nodes=128)
    if name == "model": draft = Draft(timed(EagerModel)(load("draft"), **size))
    if name == "eagle":
        head = read_head(Path(directory), OfTarget.of(TARGET), LENGTH); target.keep_features(head.config.kept)
        draft = Draft(timed(EagleModel)(head, **size), None, partial(FeatureSequence, target))
    if name == "dflash":
        head = read_block_head(Path(directory), OfTarget.of(TARGET), LENGTH); target.keep_features(head.config.kept)
        m = timed(BlockHeadModel)(head, **size); draft = Draft(m, m.block_masks, partial(FeatureSequence, target))
    times = {(1, n): forward(n) for n in (1,2,4,8,16,32,64)}
    def knowledge():
        return Knowledge(Times({(1, n): CALLS[name] for n in (1,2,4,8,16,32,64,128)}, measured=True), Times(times, measured=True), read_acceptance())
    drafter = None if draft is None else ColocatedDrafter(draft, knowledge, room=TUNING.room, clock=clock)
    engine = Engine(target, sequence_length=LENGTH, max_tree_nodes=64, vocabulary=tok.vocabulary, times=Times(times, measured=True), drafter=drafter, clock=clock)
    rows = []
    for seed, prompt in enumerate(PROMPTS):
        ids = tok.encode(prompt)[-300:]
        session = asked(engine, ids, TOKENS, SamplingParams(temperature, seed=seed), beside=draft is not None) 
        began = clock.now
        finish(engine, session)
        n = len(session.tokens) - len(ids)
        rows.append((n, session.spent.forwards, session.spent.model_seconds, clock.now - began, session.tokens[len(ids):]))
        engine.close(session)
    n = sum(r[0] for r in rows)
    print(f"{name} T={temperature}: {n/sum(r[1] for r in rows):.2f} tokens a pass, {1e3*sum(r[3] for r in rows)/n:.1f} ms a token", flush=True)
    return [r[4] for r in rows]
base = {}
for word in sys.argv[1:]:
    name, _, directory = word.partition("=")
    for T in (0.0, 0.8):
        texts = play(name, directory, T)
        if name == "none": base[T] = texts
        elif T in base: print("  equal", sum(a == b for a, b in zip(base[T], texts)), "of", len(texts))
