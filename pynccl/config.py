"""Settings of communicators and of single collectives."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from pynccl import library
from pynccl.errors import NCCLNotSupported
from pynccl.streams import handle_of
from pynccl.types import STRUCTURES, initialized, version_code, version_text

__all__ = ["CollConfig", "Config", "check_settings", "structure_of"]


class _Structured:
    """Settings that become a versioned structure of ``nccl.h``; None leaves a setting to NCCL."""

    structure_name: ClassVar[str]
    c_names: ClassVar[dict[str, str]]

    def to_struct(self) -> ctypes.Structure:
        """Return the structure, with the size and version that the loaded libnccl knows.

        Raises:
            NCCLNotSupported: a setting is given that the loaded libnccl lacks
            TypeError: a setting has a value of the wrong type
        """
        loaded = library.load()
        since = {field.name: field.since for field in STRUCTURES[self.structure_name]}
        values = self._given()
        for name in values:
            if version_code(since[name]) > loaded.version:
                raise NCCLNotSupported(
                    f"{self.structure_name}.{name}",
                    since[name],
                    version_text(loaded.version),
                    loaded.path,
                )
        made = initialized(self.structure_name, loaded.version)
        for name, value in values.items():
            try:
                setattr(made, name, value)
            except TypeError as error:
                raise TypeError(f"{self.structure_name}.{name} is {value!r}: {error}") from None
        return made

    def _given(self) -> dict[str, Any]:
        """Return the settings that are set, by C name and as C takes them."""
        given = {}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value is not None:
                given[self.c_names[field.name]] = self._converted(value)
        return given

    @staticmethod
    def _converted(value: Any) -> Any:
        if isinstance(value, str):
            return value.encode()
        return int(value) if isinstance(value, bool) else value


@dataclass(frozen=True)
class Config(_Structured):
    """Settings of a communicator (``ncclConfig_t``; the release that brought each in brackets).

    Attributes:
        blocking: False for calls that return before the communicator is made [2.14.3]
        cga_cluster_size: cooperative group array size, 0 to 8 [2.17.1]
        min_ctas, max_ctas: thread blocks that a collective may use [2.17.1]
        net_name: name of the network module [2.17.1]
        split_share: share resources with communicators split off [2.18.1]
        traffic_class: traffic class of the network [2.26.2]
        comm_name: name in logs [2.27.3]
        collnet_enable: use in-network reductions [2.27.3]
        cta_policy: ``CTAPolicy`` flags [2.27.3]
        shrink_share: share resources with communicators that shrink makes [2.27.3]
        nvls_ctas: thread blocks for NVLink SHARP [2.27.3]
        n_channels_per_net_peer: channels to each peer over the network [2.28.3]
        nvlink_centric_sched: prefer NVLink in scheduling [2.28.3]
        graph_usage_mode: how CUDA graphs are used, 0 to 2 [2.29.2]
        num_rma_ctx: contexts of one-sided operations [2.29.2]
        max_p2p_peers: peers of send and receive [2.30.4]
        graph_stream_ordering: order graphs with streams [2.30.4]
        launch_order_implicit: order launches of several communicators [2.31.2]
        num_rma_sig: signals in each context [2.31.2]
        rma_eager_init: prepare one-sided operations at once [2.31.2]
        host_cft_mode: ``HostCftMode`` [2.31.2]
        nvls_host_mode: ``NvlsHostMode`` [2.32.3]
    """

    blocking: bool | None = None
    cga_cluster_size: int | None = None
    min_ctas: int | None = None
    max_ctas: int | None = None
    net_name: str | None = None
    split_share: bool | None = None
    traffic_class: int | None = None
    comm_name: str | None = None
    collnet_enable: bool | None = None
    cta_policy: int | None = None
    shrink_share: bool | None = None
    nvls_ctas: int | None = None
    n_channels_per_net_peer: int | None = None
    nvlink_centric_sched: bool | None = None
    graph_usage_mode: int | None = None
    num_rma_ctx: int | None = None
    max_p2p_peers: int | None = None
    graph_stream_ordering: int | None = None
    launch_order_implicit: int | None = None
    num_rma_sig: int | None = None
    rma_eager_init: bool | None = None
    host_cft_mode: int | None = None
    nvls_host_mode: int | None = None

    structure_name: ClassVar[str] = "ncclConfig_t"
    c_names: ClassVar[dict[str, str]] = {
        "blocking": "blocking",
        "cga_cluster_size": "cgaClusterSize",
        "min_ctas": "minCTAs",
        "max_ctas": "maxCTAs",
        "net_name": "netName",
        "split_share": "splitShare",
        "traffic_class": "trafficClass",
        "comm_name": "commName",
        "collnet_enable": "collnetEnable",
        "cta_policy": "CTAPolicy",
        "shrink_share": "shrinkShare",
        "nvls_ctas": "nvlsCTAs",
        "n_channels_per_net_peer": "nChannelsPerNetPeer",
        "nvlink_centric_sched": "nvlinkCentricSched",
        "graph_usage_mode": "graphUsageMode",
        "num_rma_ctx": "numRmaCtx",
        "max_p2p_peers": "maxP2pPeers",
        "graph_stream_ordering": "graphStreamOrdering",
        "launch_order_implicit": "launchOrderImplicit",
        "num_rma_sig": "numRmaSig",
        "rma_eager_init": "rmaEagerInit",
        "host_cft_mode": "hostCftMode",
        "nvls_host_mode": "nvlsHostMode",
    }


@dataclass(frozen=True)
class CollConfig(_Structured):
    """Settings of one collective (``ncclCollConfig_t``, NCCL 2.31.2). All ranks give the same.

    Attributes:
        min_ctas, max_ctas: thread blocks that it may use
        nvls_ctas: thread blocks for NVLink SHARP
        cga_cluster_size: cooperative group array size
        alg_selection: which algorithms it may use
        force_alg_selection: fail where the selection cannot be met (NCCL's default)
        cta_policy: ``CTAPolicy`` flags
        user_profiler_tag: a number that profiler plugins are handed with the call
        launch_completion_event: an event to record when it is launched: handle or
            ``cuda.core.Event`` without timing [2.32.3]
    """

    min_ctas: int | None = None
    max_ctas: int | None = None
    nvls_ctas: int | None = None
    cga_cluster_size: int | None = None
    alg_selection: str | None = None
    force_alg_selection: bool | None = None
    cta_policy: int | None = None
    user_profiler_tag: int | None = None
    launch_completion_event: Any = None

    structure_name: ClassVar[str] = "ncclCollConfig_t"
    c_names: ClassVar[dict[str, str]] = {
        "min_ctas": "minCTAs",
        "max_ctas": "maxCTAs",
        "nvls_ctas": "nvlsCTAs",
        "cga_cluster_size": "cgaClusterSize",
        "alg_selection": "algSelection",
        "force_alg_selection": "forceAlgSelection",
        "cta_policy": "CTAPolicy",
        "user_profiler_tag": "userProfilerTag",
        "launch_completion_event": "launchCompletionEvent",
    }

    @staticmethod
    def _converted(value: Any) -> Any:
        handle = getattr(value, "handle", None)
        return int(handle) if handle is not None else _Structured._converted(value)


def structure_of(config: Any, kind: type[_Structured]) -> ctypes.Structure | None:
    """Return the structure of a config, or None where there is none.

    Raises:
        TypeError: it is no config of this kind
        NCCLNotSupported: it has a setting that the library lacks
    """
    if config is None:
        return None
    if not isinstance(config, kind):
        raise TypeError(
            f"config is a {type(config).__name__}; it must be a pynccl.{kind.__name__}, or None"
        )
    return config.to_struct()


def check_settings(config: Any, timeout: Any, stream: Any) -> None:
    """Raise for settings of a communicator with which it could not be made.

    One rank that fails over them later would leave the others waiting for it.

    Raises:
        TypeError: one is of the wrong type
        ValueError: the timeout is negative
        NCCLNotSupported: the config has a setting that the library lacks
    """
    structure_of(config, Config)
    if timeout is not None:
        if not isinstance(timeout, (int, float)):
            raise TypeError(f"timeout is a {type(timeout).__name__}; it must be seconds, or None")
        if timeout < 0:
            raise ValueError(f"timeout {timeout} must not be negative")
    if stream is not None:
        handle_of(stream)
