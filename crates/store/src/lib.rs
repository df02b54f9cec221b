//! Objects for web caches on a raw disk or file.
//!
//! Owns: the on-disk format (`docs/formats/store.md`), the index, the memory tier, fills, purges and recovery. Leaves to
//! others: what an object means (its metadata is opaque here), HTTP, and the device (`nectary-block`).
//!
//! | file | what is in it |
//! |---|---|
//! | `store`, `purging`, `options` | the public face |
//! | `spans` | several devices that serve as one store |
//! | `shared`, `lookup` | commit and lookup: the order of things between memory, index and purges |
//! | `fill`, `object`, `entry`, `key`, `tags` | one fetch for many readers; what a hit is; what memory holds; names |
//! | `memory`, `index`, `purges`, `names`, `queue`, `marks` | the parts in memory |
//! | `reads` | one read for all who wait for it |
//! | `hints`, `arrange`, `groups`, `clusters`, `near` | what belongs together: packed side by side, read at once |
//! | `regroup`, `twins` | what lies apart and is wanted together: written anew side by side |
//! | `writer`, `reinsert`, `pack`, `purge_log`, `checkpoint` | what writes |
//! | `recovery`, `log`, `replay`, `loading`, `check` | what reads back |
//! | `format`, `layout` | the bytes |
#![forbid(unsafe_code)]

mod admission;
mod arrange;
mod budget;
mod check;
mod checkpoint;
mod clusters;
mod commit;
mod entry;
mod error;
mod fill;
mod format;
#[doc(hidden)]
pub mod fuzzing;
mod groups;
mod hints;
mod hot;
mod index;
mod intake;
mod keep;
mod key;
mod layout;
mod loading;
mod log;
mod lookup;
mod marks;
mod memory;
mod names;
mod near;
mod object;
mod options;
mod pace;
mod pack;
pub mod planted;
mod purge_commit;
mod purge_log;
mod purges;
mod purging;
mod queue;
mod random;
mod read_ahead;
mod reads;
mod record;
mod recovery;
mod regroup;
mod reinsert;
mod replay;
mod rewriting;
mod span;
mod spans;
mod stat;
mod state;
mod store;
mod tags;
mod twins;
mod warm;
mod warm_list;
mod writer;

pub use admission::{
    AdmissionOptions, AdmissionStat, AdmitRule, WRITE_BUDGET_BYTES_A_DAY_MIN, WriteBudget, WriteBudgetStat,
};
pub use arrange::PackEnd;
pub use check::CheckReport;
pub use clusters::ClusterRead;
pub use error::{Error, ErrorKind};
pub use fill::{Fill, FillHead, FillReader, FillRole};
pub use format::METADATA_BYTES_MAX;
pub use keep::REWRITE_PERCENT_MAX;
pub use key::{Key, KeyRef, PRIMARY_BYTES_MAX, VARIANT_BYTES_MAX};
pub use layout::{SPAN_BYTES_MAX, SPAN_BYTES_MIN, SPANS_MAX};
pub use object::{BodyReader, Object};
pub use options::{
    Background, CLUSTER_BYTES_MAX, CLUSTER_BYTES_MIN, CreateOptions, IndexLoading, MEMORY_BYTES_MIN, OpenOptions,
};
pub use reinsert::REINSERT_PERCENT_MAX;
pub use spans::{SpanDevice, Spans};
pub use stat::{Counts, Recovery, Sequence, Sequences, SpanStat, Stat};
pub use store::Store;
pub use tags::{TAG_BYTES_MAX, TAGS_MAX};
