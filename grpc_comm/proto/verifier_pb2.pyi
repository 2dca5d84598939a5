from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ("model", "tokenizer_settings")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_SETTINGS_FIELD_NUMBER: _ClassVar[int]
    model: str
    tokenizer_settings: bool
    def __init__(self, model: _Optional[str] = ..., tokenizer_settings: _Optional[bool] = ...) -> None: ...

class Description(_message.Message):
    __slots__ = ("server_version", "protocol_version", "model", "model_fingerprint", "tokenizer_fingerprint", "vocabulary", "sequence_length", "max_tree_nodes", "rows", "dtype", "device", "stop_ids", "models", "draft_model", "times", "usd_per_hour", "sessions", "rules", "emulated", "settings_digest", "tokenizer_settings")
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
    USD_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    EMULATED_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_SETTINGS_FIELD_NUMBER: _ClassVar[int]
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
    usd_per_hour: float
    sessions: int
    rules: bool
    emulated: bool
    settings_digest: str
    tokenizer_settings: bytes
    def __init__(self, server_version: _Optional[str] = ..., protocol_version: _Optional[int] = ..., model: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., tokenizer_fingerprint: _Optional[str] = ..., vocabulary: _Optional[int] = ..., sequence_length: _Optional[int] = ..., max_tree_nodes: _Optional[int] = ..., rows: _Optional[int] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., stop_ids: _Optional[_Iterable[int]] = ..., models: _Optional[_Iterable[str]] = ..., draft_model: _Optional[str] = ..., times: _Optional[_Iterable[_Union[ForwardTime, _Mapping]]] = ..., usd_per_hour: _Optional[float] = ..., sessions: _Optional[int] = ..., rules: _Optional[bool] = ..., emulated: _Optional[bool] = ..., settings_digest: _Optional[str] = ..., tokenizer_settings: _Optional[bytes] = ...) -> None: ...

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
    __slots__ = ("open", "close", "resume", "heartbeat", "decode", "nodes", "ack", "go")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    GO_FIELD_NUMBER: _ClassVar[int]
    open: Open
    close: Close
    resume: Resume
    heartbeat: Heartbeat
    decode: Decode
    nodes: Nodes
    ack: Ack
    go: Go
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., decode: _Optional[_Union[Decode, _Mapping]] = ..., nodes: _Optional[_Union[Nodes, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., go: _Optional[_Union[Go, _Mapping]] = ...) -> None: ...

class ServerMessage(_message.Message):
    __slots__ = ("opened", "go_away", "tokens")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    GO_AWAY_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    go_away: GoAway
    tokens: Tokens
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., go_away: _Optional[_Union[GoAway, _Mapping]] = ..., tokens: _Optional[_Union[Tokens, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("session_id", "protocol_version", "model_fingerprint", "tokenizer_fingerprint", "prompt", "temperature", "top_k", "top_p", "seed", "model", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "bias_ids", "biases", "grammar", "logprobs", "prompt_logprobs", "made", "min_tokens", "end_ids")
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
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    BIAS_IDS_FIELD_NUMBER: _ClassVar[int]
    BIASES_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MADE_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    END_IDS_FIELD_NUMBER: _ClassVar[int]
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
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    bias_ids: _containers.RepeatedScalarFieldContainer[int]
    biases: _containers.RepeatedScalarFieldContainer[float]
    grammar: Grammar
    logprobs: int
    prompt_logprobs: bool
    made: int
    min_tokens: int
    end_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session_id: _Optional[str] = ..., protocol_version: _Optional[int] = ..., model_fingerprint: _Optional[str] = ..., tokenizer_fingerprint: _Optional[str] = ..., prompt: _Optional[_Iterable[int]] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ..., model: _Optional[str] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., bias_ids: _Optional[_Iterable[int]] = ..., biases: _Optional[_Iterable[float]] = ..., grammar: _Optional[_Union[Grammar, _Mapping]] = ..., logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[bool] = ..., made: _Optional[int] = ..., min_tokens: _Optional[int] = ..., end_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Grammar(_message.Message):
    __slots__ = ("kind", "text")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        JSON_SCHEMA: _ClassVar[Grammar.Kind]
        REGEX: _ClassVar[Grammar.Kind]
        EBNF: _ClassVar[Grammar.Kind]
        CHOICE: _ClassVar[Grammar.Kind]
    JSON_SCHEMA: Grammar.Kind
    REGEX: Grammar.Kind
    EBNF: Grammar.Kind
    CHOICE: Grammar.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: Grammar.Kind
    text: str
    def __init__(self, kind: _Optional[_Union[Grammar.Kind, str]] = ..., text: _Optional[str] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("session_id", "protocol_version", "resume_key", "epoch", "length")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RESUME_KEY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    protocol_version: int
    resume_key: bytes
    epoch: int
    length: int
    def __init__(self, session_id: _Optional[str] = ..., protocol_version: _Optional[int] = ..., resume_key: _Optional[bytes] = ..., epoch: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("session_id", "length", "queue_seconds", "prefill_seconds", "resume_key", "lease_seconds", "reused_tokens", "tree_nodes", "candidates", "logprobs", "top_ids", "top_logprobs")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RESUME_KEY_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REUSED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TREE_NODES_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    length: int
    queue_seconds: float
    prefill_seconds: float
    resume_key: bytes
    lease_seconds: float
    reused_tokens: int
    tree_nodes: int
    candidates: int
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, session_id: _Optional[str] = ..., length: _Optional[int] = ..., queue_seconds: _Optional[float] = ..., prefill_seconds: _Optional[float] = ..., resume_key: _Optional[bytes] = ..., lease_seconds: _Optional[float] = ..., reused_tokens: _Optional[int] = ..., tree_nodes: _Optional[int] = ..., candidates: _Optional[int] = ..., logprobs: _Optional[_Iterable[float]] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class Decode(_message.Message):
    __slots__ = ("end", "stop_ids", "pace", "credit", "beside")
    class Pace(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        GO_ON: _ClassVar[Decode.Pace]
        WAIT: _ClassVar[Decode.Pace]
    GO_ON: Decode.Pace
    WAIT: Decode.Pace
    END_FIELD_NUMBER: _ClassVar[int]
    STOP_IDS_FIELD_NUMBER: _ClassVar[int]
    PACE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    BESIDE_FIELD_NUMBER: _ClassVar[int]
    end: int
    stop_ids: _containers.RepeatedScalarFieldContainer[int]
    pace: Decode.Pace
    credit: int
    beside: bool
    def __init__(self, end: _Optional[int] = ..., stop_ids: _Optional[_Iterable[int]] = ..., pace: _Optional[_Union[Decode.Pace, str]] = ..., credit: _Optional[int] = ..., beside: _Optional[bool] = ...) -> None: ...

class Nodes(_message.Message):
    __slots__ = ("first", "base", "parents", "tokens", "chances", "proposer")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHANCES_FIELD_NUMBER: _ClassVar[int]
    PROPOSER_FIELD_NUMBER: _ClassVar[int]
    first: int
    base: int
    parents: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    chances: bytes
    proposer: int
    def __init__(self, first: _Optional[int] = ..., base: _Optional[int] = ..., parents: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., chances: _Optional[bytes] = ..., proposer: _Optional[int] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("length",)
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    length: int
    def __init__(self, length: _Optional[int] = ...) -> None: ...

class Go(_message.Message):
    __slots__ = ("base",)
    BASE_FIELD_NUMBER: _ClassVar[int]
    base: int
    def __init__(self, base: _Optional[int] = ...) -> None: ...

class Tokens(_message.Message):
    __slots__ = ("position", "ids", "proposers", "known", "held", "nodes", "forwards", "lone", "queue_microseconds", "model_microseconds", "share_microseconds", "room", "end", "logprobs", "top_ids", "top_logprobs")
    class End(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NOT: _ClassVar[Tokens.End]
        STOP_ID: _ClassVar[Tokens.End]
        MAX_TOKENS: _ClassVar[Tokens.End]
        LIMIT: _ClassVar[Tokens.End]
        DRAINED: _ClassVar[Tokens.End]
        CREDIT: _ClassVar[Tokens.End]
        EVICTED: _ClassVar[Tokens.End]
    NOT: Tokens.End
    STOP_ID: Tokens.End
    MAX_TOKENS: Tokens.End
    LIMIT: Tokens.End
    DRAINED: Tokens.End
    CREDIT: Tokens.End
    EVICTED: Tokens.End
    POSITION_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    PROPOSERS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    FORWARDS_FIELD_NUMBER: _ClassVar[int]
    LONE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    MODEL_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    SHARE_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    position: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    proposers: bytes
    known: int
    held: int
    nodes: int
    forwards: int
    lone: int
    queue_microseconds: int
    model_microseconds: int
    share_microseconds: int
    room: int
    end: Tokens.End
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, position: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., proposers: _Optional[bytes] = ..., known: _Optional[int] = ..., held: _Optional[int] = ..., nodes: _Optional[int] = ..., forwards: _Optional[int] = ..., lone: _Optional[int] = ..., queue_microseconds: _Optional[int] = ..., model_microseconds: _Optional[int] = ..., share_microseconds: _Optional[int] = ..., room: _Optional[int] = ..., end: _Optional[_Union[Tokens.End, str]] = ..., logprobs: _Optional[_Iterable[float]] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class Close(_message.Message):
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
