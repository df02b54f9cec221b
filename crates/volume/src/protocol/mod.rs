//! The messages between mounts and the metadata server: `docs/formats/volume-protocol.md` in code.
//!
//! Owns: operations, questions, answers and messages as values, and their encoding. Promises: an encoded message
//! decodes to the same message; for any bytes, a decoder returns an error rather than panicking or allocating beyond
//! its bounds. Leaves to others: the effect of the messages, and their transport.
//!
//! | file | what is in it |
//! |---|---|
//! | `operation` | requests that change something |
//! | `question` | requests that change nothing |
//! | `answer` | answers to both, and reasons of refusals |
//! | `message` | all messages |
//! | `version` | the supported versions of the messages |
//! | `codec` | the encoding of messages |

mod answer;
mod codec;
mod message;
mod operation;
mod question;
mod version;

pub use answer::{
    FileShape, GrantedSpace, InodeAttributes, ListedName, RefusalCode, ServerAnswer, ServerRefusal, VolumeStatistics,
};
pub use codec::{BODY_BYTES_MAX, HEADER_BYTES, MessageHeader};
pub use message::{
    AnswerTerms, FileLockRange, HelloMessage, MAY_KEEP_MAX, MayKeep, Token, TokenAspect, TokenGrant, VolumeMessage,
};
pub use operation::{
    AttributeChanges, FILE_BLOCKS_MAX, FileAccess, FileId, JudgedOwner, MappedExtent, MetadataOperation, TimeChange,
};
pub use question::{MetadataQuestion, SiblingSession};
pub use version::{VERSIONS, common_version, versions_differ};
