//! The messages of etcd that a fleet needs.
//!
//! Owns: their fields, as etcd's public API numbers them (`etcdserverpb`, `mvccpb`, version 3). Fields that nobody reads are
//! left out; a reader of protobuf skips them.
#![allow(missing_docs, reason = "the messages and fields are etcd's, and its documentation has them")]

use bytes::Bytes;
use prost::{Message, Oneof};

/// The result of a comparison that it wants.
pub const EQUAL: i32 = 0;
/// What a comparison is about.
pub const CREATE_REVISION: i32 = 1;
pub const MOD_REVISION: i32 = 2;
pub const LEASE: i32 = 4;
/// The type of an event: the key is gone.
pub const EVENT_DELETE: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub struct ResponseHeader {
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    #[prost(int64, tag = "2")]
    pub create_revision: i64,
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    #[prost(bytes = "bytes", tag = "5")]
    pub value: Bytes,
    #[prost(int64, tag = "6")]
    pub lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct EtcdEvent {
    #[prost(int32, tag = "1")]
    pub kind: i32,
    #[prost(message, optional, tag = "2")]
    pub kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RangeRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
    #[prost(int64, tag = "3")]
    pub limit: i64,
    #[prost(int64, tag = "4")]
    pub revision: i64,
    #[prost(bool, tag = "8")]
    pub keys_only: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct PutRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
    #[prost(int64, tag = "3")]
    pub lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct DeleteRangeRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub struct RequestOp {
    #[prost(oneof = "EtcdOperation", tags = "1, 2, 3")]
    pub operation: Option<EtcdOperation>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum EtcdOperation {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRangeRequest),
}

/// The response to a put or a removal in a transaction, of which nothing is read.
#[derive(Clone, PartialEq, Message)]
pub struct ChangeResponse {}

#[derive(Clone, PartialEq, Message)]
pub struct ResponseOp {
    #[prost(oneof = "OperationResult", tags = "1, 2, 3")]
    pub result: Option<OperationResult>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum OperationResult {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    #[prost(message, tag = "2")]
    Put(ChangeResponse),
    #[prost(message, tag = "3")]
    Delete(ChangeResponse),
}

#[derive(Clone, PartialEq, Message)]
pub struct TxnCompare {
    #[prost(int32, tag = "1")]
    pub result: i32,
    #[prost(int32, tag = "2")]
    pub target: i32,
    #[prost(bytes = "bytes", tag = "3")]
    pub key: Bytes,
    #[prost(oneof = "ComparedValue", tags = "5, 6, 8")]
    pub value: Option<ComparedValue>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum ComparedValue {
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
    #[prost(int64, tag = "8")]
    Lease(i64),
}

#[derive(Clone, PartialEq, Message)]
pub struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<TxnCompare>,
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<ResponseOp>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    pub ttl: i64,
    #[prost(int64, tag = "2")]
    pub id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    pub id: i64,
    #[prost(int64, tag = "3")]
    pub ttl: i64,
    #[prost(string, tag = "4")]
    pub error: String,
}

/// A request to keep or to end a lease.
#[derive(Clone, PartialEq, Message)]
pub struct LeaseRequest {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseKeepAliveResponse {
    #[prost(int64, tag = "2")]
    pub id: i64,
    /// 0 if there is no such lease.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseRevokeResponse {}

#[derive(Clone, PartialEq, Message)]
pub struct WatchRequest {
    #[prost(oneof = "WatchKind", tags = "1, 3")]
    pub kind: Option<WatchKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum WatchKind {
    #[prost(message, tag = "1")]
    Create(WatchCreateRequest),
    #[prost(message, tag = "3")]
    Progress(WatchProgressRequest),
}

#[derive(Clone, PartialEq, Message)]
pub struct WatchCreateRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
    #[prost(int64, tag = "3")]
    pub start_revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct WatchProgressRequest {}

#[derive(Clone, PartialEq, Message)]
pub struct WatchResponse {
    #[prost(bool, tag = "3")]
    pub created: bool,
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    #[prost(int64, tag = "5")]
    pub compact_revision: i64,
    #[prost(string, tag = "6")]
    pub cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<EtcdEvent>,
}

/// The end of the range of keys that begin with a prefix.
pub fn range_end(prefix: &str) -> Bytes {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end.into();
        }
    }
    Bytes::from_static(b"\0")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that etcd's own clients send for these requests.
    #[test]
    fn messages_have_the_bytes_of_etcd() {
        let range =
            RangeRequest { key: "a".into(), range_end: "b".into(), limit: 2, keys_only: true, ..Default::default() };
        assert_eq!(range.encode_to_vec(), b"\x0a\x01a\x12\x01b\x18\x02\x40\x01");
        let value = Some(ComparedValue::CreateRevision(0));
        let compare = TxnCompare { result: EQUAL, target: CREATE_REVISION, key: "k".into(), value };
        let put = PutRequest { key: "k".into(), value: "v".into(), lease: 7 };
        let success = vec![RequestOp { operation: Some(EtcdOperation::Put(put)) }];
        let txn = TxnRequest { compare: vec![compare], success, failure: Vec::new() };
        assert_eq!(txn.encode_to_vec(), b"\x0a\x07\x10\x01\x1a\x01k\x28\x00\x12\x0a\x12\x08\x0a\x01k\x12\x01v\x18\x07");
        let create = WatchCreateRequest { key: "a".into(), range_end: "b".into(), start_revision: 300 };
        let watch = WatchRequest { kind: Some(WatchKind::Create(create)) };
        assert_eq!(watch.encode_to_vec(), b"\x0a\x09\x0a\x01a\x12\x01b\x18\xac\x02");
        assert_eq!(
            WatchRequest { kind: Some(WatchKind::Progress(WatchProgressRequest {})) }.encode_to_vec(),
            b"\x1a\x00"
        );
    }

    #[test]
    fn unknown_fields_are_skipped() {
        // A header with cluster_id, member_id, revision 9 and raft_term.
        let header = ResponseHeader::decode(&b"\x08\x01\x10\x02\x18\x09\x20\x03"[..]).expect("a header");
        assert_eq!(header.revision, 9);
    }

    #[test]
    fn range_ends_follow_their_prefix() {
        assert_eq!(range_end("/a/"), "/a0");
        assert_eq!(range_end(""), &b"\0"[..]);
    }
}
