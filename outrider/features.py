"""Features of a target's layers for heads on clients' machines: what a target gives, and what a
client asks for.
"""

from __future__ import annotations

from dataclasses import replace

from grpc_comm.client.connection import Connection
from grpc_comm.translate import Description
from inference.backends import Model
from inference.backends.received_features import ReceivedFeatures
from inference.backends.timed import feature_model
from inference.engine.feature_feed import FeatureOffer
from inference.errors import Mismatch, UnsupportedModel
from inference.features import FeatureForm
from outrider.models import Checkpoint, FoundModel
from outrider.options.features import FeatureOptions, FeatureServingOptions


def feature_offer(
    options: FeatureServingOptions, model: Model, found: FoundModel
) -> FeatureOffer | None:
    """Let the model keep the features of --features; None where that is not given.

    Raises UnsupportedModel for a model that keeps none, and InvalidRequest for layers that it does
    not have.
    """
    from inference.model.eagle_config import named_layers

    if options.features is None:
        return None
    keeper = feature_model(model)
    if keeper is None or not isinstance(found, Checkpoint):
        raise UnsupportedModel(
            f"--features: {found.name} keeps none as it is served here; a checkpoint on cpu or "
            "cuda does, and an artefact that was built with --features"
        )
    layers = named_layers(options.features, found.config.layers)
    keeper.keep_features(layers)
    form = FeatureForm(layers, found.config.hidden_size)
    return FeatureOffer(keeper, form, options.feature_bytes_per_second)


def with_offer(description: Description, offer: FeatureOffer | None) -> Description:
    """The description, with the features that clients may ask for."""
    if offer is None:
        return description
    return replace(
        description,
        feature_layers=offer.form.layers,
        feature_width=offer.form.hidden,
        feature_bytes_per_second=offer.bytes_per_second,
    )


def received_features(
    options: FeatureOptions, form: FeatureForm, target: Connection, rows: int, length: int
) -> list[ReceivedFeatures]:
    """Where the features of each row's texts go. Raises Mismatch where the target does not give
    those that the head reads.
    """
    told = target.description
    given = FeatureForm(told.feature_layers, told.feature_width)
    if given != form:
        offer = f"gives {given}" if given.layers else "gives none"
        raise Mismatch(
            f"the head reads {form}; {told.model} at {target.address} {offer}: start it with "
            f"--features {','.join(map(str, form.layers))}"
        )
    rate = min(options.feature_bytes_per_second, told.feature_bytes_per_second)
    return [ReceivedFeatures(form, length, rate) for _ in range(rows)]
