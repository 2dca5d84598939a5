from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class Description(_message.Message):
    __slots__ = ("server_version", "protocol_version", "model", "model_fingerprint", "tokenizer_fingerprint", "vocabulary", "sequence_length", "max_tree_nodes", "rows", "dtype", "device", "stop_ids", "models", "draft_model", "times", "draft_times", "draft_nodes", "usd_per_hour", "sessions")
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MAX_TREE_NODES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    STOP_IDS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MODEL_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TIMES_FIELD_NUMBER: _ClassVar[int]
    DRAFT_NODES_FIELD_NUMBER: _ClassVar[int]
    USD_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    server_version: str
    protocol_version: int
    model: str
    model_fingerprint: str
    tokenizer_fingerprint: str
    vocabulary: int
    sequence_length: int
    max_tree_nodes: int
    rows: int
    dtype: str
    device: str
    stop_ids: _containers.RepeatedScalarFieldContainer[int]
    models: _containers.RepeatedScalarFieldContainer[str]
    draft_model: str
    times: _containers.RepeatedCompositeFieldContainer[ForwardTime]
    draft_times: _containers.RepeatedCompositeFieldContainer[ForwardTime]
    draft_nodes: int
    usd_per_hour: float
    sessions: int
    def __init__(self, server_version: _Optional[str] = ..., protocol_version: _Optional[int] = ..., model: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., tokenizer_fingerprint: _Optional[str] = ..., vocabulary: _Optional[int] = ..., sequence_length: _Optional[int] = ..., max_tree_nodes: _Optional[int] = ..., rows: _Optional[int] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., stop_ids: _Optional[_Iterable[int]] = ..., models: _Optional[_Iterable[str]] = ..., draft_model: _Optional[str] = ..., times: _Optional[_Iterable[_Union[ForwardTime, _Mapping]]] = ..., draft_times: _Optional[_Iterable[_Union[ForwardTime, _Mapping]]] = ..., draft_nodes: _Optional[int] = ..., usd_per_hour: _Optional[float] = ..., sessions: _Optional[int] = ...) -> None: ...

class ForwardTime(_message.Message):
    __slots__ = ("rows", "nodes", "seconds")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    nodes: int
    seconds: float
    def __init__(self, rows: _Optional[int] = ..., nodes: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class ClientMessage(_message.Message):
    __slots__ = ("open", "round", "generate", "close", "resume", "heartbeat", "halt")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    GENERATE_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    HALT_FIELD_NUMBER: _ClassVar[int]
    open: Open
    round: Round
    generate: Continue
    close: Close
    resume: Resume
    heartbeat: Heartbeat
    halt: Halt
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., round: _Optional[_Union[Round, _Mapping]] = ..., generate: _Optional[_Union[Continue, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., halt: _Optional[_Union[Halt, _Mapping]] = ...) -> None: ...

class ServerMessage(_message.Message):
    __slots__ = ("opened", "verdict", "tokens", "go_away")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    GO_AWAY_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    verdict: Verdict
    tokens: Tokens
    go_away: GoAway
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., tokens: _Optional[_Union[Tokens, _Mapping]] = ..., go_away: _Optional[_Union[GoAway, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("session_id", "protocol_version", "model_fingerprint", "tokenizer_fingerprint", "prompt", "temperature", "top_k", "top_p", "seed", "model")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    protocol_version: int
    model_fingerprint: str
    tokenizer_fingerprint: str
    prompt: _containers.RepeatedScalarFieldContainer[int]
    temperature: float
    top_k: int
    top_p: float
    seed: int
    model: str
    def __init__(self, session_id: _Optional[str] = ..., protocol_version: _Optional[int] = ..., model_fingerprint: _Optional[str] = ..., tokenizer_fingerprint: _Optional[str] = ..., prompt: _Optional[_Iterable[int]] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ..., model: _Optional[str] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("session_id", "protocol_version", "resume_key", "epoch")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RESUME_KEY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    protocol_version: int
    resume_key: bytes
    epoch: int
    def __init__(self, session_id: _Optional[str] = ..., protocol_version: _Optional[int] = ..., resume_key: _Optional[bytes] = ..., epoch: _Optional[int] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("session_id", "length", "queue_seconds", "prefill_seconds", "resume_key", "lease_seconds", "reused_tokens", "rounds", "tree_nodes")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RESUME_KEY_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REUSED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    TREE_NODES_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    length: int
    queue_seconds: float
    prefill_seconds: float
    resume_key: bytes
    lease_seconds: float
    reused_tokens: int
    rounds: int
    tree_nodes: int
    def __init__(self, session_id: _Optional[str] = ..., length: _Optional[int] = ..., queue_seconds: _Optional[float] = ..., prefill_seconds: _Optional[float] = ..., resume_key: _Optional[bytes] = ..., lease_seconds: _Optional[float] = ..., reused_tokens: _Optional[int] = ..., rounds: _Optional[int] = ..., tree_nodes: _Optional[int] = ...) -> None: ...

class Round(_message.Message):
    __slots__ = ("number", "base_length", "tokens", "parents", "digest", "ahead")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BASE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    number: int
    base_length: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    digest: int
    ahead: bool
    def __init__(self, number: _Optional[int] = ..., base_length: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ..., digest: _Optional[int] = ..., ahead: bool = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("number", "path", "next_token", "queue_microseconds", "model_microseconds", "budget")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    NEXT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    MODEL_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    number: int
    path: _containers.RepeatedScalarFieldContainer[int]
    next_token: int
    queue_microseconds: int
    model_microseconds: int
    budget: int
    def __init__(self, number: _Optional[int] = ..., path: _Optional[_Iterable[int]] = ..., next_token: _Optional[int] = ..., queue_microseconds: _Optional[int] = ..., model_microseconds: _Optional[int] = ..., budget: _Optional[int] = ...) -> None: ...

class Continue(_message.Message):
    __slots__ = ("max_tokens", "stop_ids", "base_length", "digest", "fused", "shape")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_IDS_FIELD_NUMBER: _ClassVar[int]
    BASE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FUSED_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    stop_ids: _containers.RepeatedScalarFieldContainer[int]
    base_length: int
    digest: int
    fused: bool
    shape: Shape
    def __init__(self, max_tokens: _Optional[int] = ..., stop_ids: _Optional[_Iterable[int]] = ..., base_length: _Optional[int] = ..., digest: _Optional[int] = ..., fused: bool = ..., shape: _Optional[_Union[Shape, _Mapping]] = ...) -> None: ...

class Shape(_message.Message):
    __slots__ = ("chain", "nodes", "depth")
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    chain: int
    nodes: int
    depth: int
    def __init__(self, chain: _Optional[int] = ..., nodes: _Optional[int] = ..., depth: _Optional[int] = ...) -> None: ...

class Tokens(_message.Message):
    __slots__ = ("ids", "last", "queue_microseconds", "model_microseconds", "drafted")
    IDS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    MODEL_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    last: bool
    queue_microseconds: int
    model_microseconds: int
    drafted: int
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., last: bool = ..., queue_microseconds: _Optional[int] = ..., model_microseconds: _Optional[int] = ..., drafted: _Optional[int] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Halt(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GoAway(_message.Message):
    __slots__ = ("reason", "retry_after_seconds")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    retry_after_seconds: float
    def __init__(self, reason: _Optional[str] = ..., retry_after_seconds: _Optional[float] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("open", "max_tokens", "stop_ids", "fused", "shape")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_IDS_FIELD_NUMBER: _ClassVar[int]
    FUSED_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    open: Open
    max_tokens: int
    stop_ids: _containers.RepeatedScalarFieldContainer[int]
    fused: bool
    shape: Shape
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., max_tokens: _Optional[int] = ..., stop_ids: _Optional[_Iterable[int]] = ..., fused: bool = ..., shape: _Optional[_Union[Shape, _Mapping]] = ...) -> None: ...

class Generated(_message.Message):
    __slots__ = ("ids", "drafted", "last", "queue_microseconds", "prefill_microseconds", "model_microseconds", "draft_microseconds")
    IDS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    MODEL_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    drafted: int
    last: bool
    queue_microseconds: int
    prefill_microseconds: int
    model_microseconds: int
    draft_microseconds: int
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., drafted: _Optional[int] = ..., last: bool = ..., queue_microseconds: _Optional[int] = ..., prefill_microseconds: _Optional[int] = ..., model_microseconds: _Optional[int] = ..., draft_microseconds: _Optional[int] = ...) -> None: ...
