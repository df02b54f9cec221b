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

pub use answer::{Answer, Attributes, Code, Failure, Granted, Listed, Shape, Statistics};
pub use codec::{BODY_BYTES_MAX, HEADER_BYTES, Header};
pub use message::{Held, Hello, Locked, MAY_KEEP_MAX, MayKeep, Message, Terms, Token, What};
pub use operation::{Accessed, Changes, FILE_BLOCKS_MAX, FileId, Mapped, Operation, TimeChange};
pub use question::{Question, Sibling};
pub use version::{VERSIONS, common_version, versions_differ};
