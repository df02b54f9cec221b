//! Reads `[store]` and `[limits]`.
//!
//! Owns: their bounds, which are those of the options of `nectary proxy`.

use super::findings::ReadFindings;
use super::table_reader::{TableReader, TimeBound};
use crate::place::Setting;
use crate::quantity::exact_size;
use crate::text::{device_spec, request_rate, write_budget};
use crate::values::{AdmitRule, ClusterRead, LimitConfig, StoreConfig, StoreIoEngine};

/// The bounds of the head of a message. *Units*: bytes.
const HEAD_BYTES: std::ops::RangeInclusive<u64> = 1024..=16 << 20;
/// The most headers of a message.
const HEADERS_MAX: u16 = 10_000;
/// The largest cluster. *Units*: bytes.
const CLUSTER_BYTES_MAX: u64 = 1 << 20;
/// The smallest cluster. *Units*: bytes.
const CLUSTER_BYTES_MIN: u64 = 4 << 10;
/// The most of a segment that may be rewritten.
const REINSERT_PERCENT_MAX: u32 = 50;
/// The most of what is admitted that may be rewritten.
const REWRITE_PERCENT_MAX: u32 = 100;

/// Reads `[store]`.
pub(super) fn store(out: &mut ReadFindings, table: &TableReader<'_>) -> StoreConfig {
    let engines = [("auto", StoreIoEngine::Auto), ("uring", StoreIoEngine::Uring), ("posix", StoreIoEngine::Posix)];
    let reads = [("auto", ClusterRead::Auto), ("cluster", ClusterRead::Cluster), ("object", ClusterRead::Object)];
    let rules = [("all", AdmitRule::All), ("second-request", AdmitRule::SecondRequest)];
    StoreConfig {
        device: table.required(out, "device", |out| table.text(out, "device", device_spec)).unwrap_or_default(),
        spans: table.list(out, "spans", device_spec),
        forget_if_spans_missing: table.switch(out, "forget-if-spans-missing"),
        size_bytes: table.size(out, "size", 1..=u64::MAX),
        memory_bytes: table.size(out, "memory", 1..=u64::MAX),
        io: table.choice(out, "io", &engines),
        disk_deadline: table.time(out, "disk-deadline", TimeBound::Any),
        admit: table.choice(out, "admit", &rules),
        admit_bytes_min: table.size(out, "admit-bytes-min", 0..=u64::MAX),
        admit_bytes_max: table.size(out, "admit-bytes-max", 0..=u64::MAX),
        write_budget: table.text(out, "write-budget", write_budget),
        reinsert_percent: table.number(out, "reinsert", 0..=REINSERT_PERCENT_MAX),
        rewrite_percent: table.number(out, "rewrite", 0..=REWRITE_PERCENT_MAX),
        cluster_read: table.choice(out, "cluster-read", &reads),
        cluster_size_bytes: cluster_size(out, table),
    }
}

fn cluster_size(out: &mut ReadFindings, table: &TableReader<'_>) -> Setting<u64> {
    let size = table.size(out, "cluster-size", 0..=CLUSTER_BYTES_MAX)?;
    if size.value == 0 || (size.value >= CLUSTER_BYTES_MIN && size.value.is_power_of_two()) {
        return Some(size);
    }
    let allowed = "allowed: 4K, 8K, 16K, 32K, 64K, 128K, 256K, 512K, 1M, and 0 for none";
    out.wrong(size.place, format!("`cluster-size` cannot be {}", exact_size(size.value)), allowed);
    None
}

/// Reads `[limits]`.
pub(super) fn limits(out: &mut ReadFindings, table: &TableReader<'_>) -> LimitConfig {
    use TimeBound::{Any, Positive};
    LimitConfig {
        connections_max: table.number(out, "connections-max", 1..=u32::MAX),
        client_connections_max: table.number(out, "client-connections-max", 1..=u32::MAX),
        client_requests: table.text(out, "client-requests", request_rate),
        request_head_bytes_max: table.size(out, "request-head-max", HEAD_BYTES),
        response_head_bytes_max: table.size(out, "response-head-max", HEAD_BYTES),
        headers_max: table.number(out, "headers-max", 1..=HEADERS_MAX),
        url_bytes_max: table.size(out, "url-max", 1..=u64::MAX),
        upload_bytes_max: table.size(out, "upload-max", 0..=u64::MAX),
        fills_max: table.number(out, "fills-max", 1..=u32::MAX),
        range_start_bytes_max: table.size(out, "range-start-max", 0..=u64::MAX),
        origin_idle_max: table.number(out, "origin-idle-max", 0..=u32::MAX),
        head_time: table.time(out, "head-time", Positive),
        keep_alive: table.time(out, "keep-alive", Positive),
        client_silence: table.time(out, "client-silence", Any),
        send_silence: table.time(out, "send-silence", Any),
        connect_time: table.time(out, "connect-time", Positive),
        first_byte: table.time(out, "first-byte", Positive),
        origin_silence: table.time(out, "origin-silence", Any),
        origin_keep_alive: table.time(out, "origin-keep-alive", Positive),
        tunnel_silence: table.time(out, "tunnel-silence", Any),
        drain: table.time(out, "drain", Any),
    }
}
