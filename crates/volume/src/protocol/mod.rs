//! What mounts and the metadata server say to each other: `docs/formats/volume-protocol.md` in code.
//!
//! Owns: operations, questions, answers and messages as values, and their bytes. Promises: what is encoded decodes to
//! the same; a decoder gives an error, and never panics or allocates beyond its bounds, for any bytes. Leaves to others:
//! what they do, and how they travel.
//!
//! | file | what is in it |
//! |---|---|
//! | `operation` | what changes something |
//! | `question` | what changes nothing |
//! | `answer` | what both are answered with, and why one is refused |
//! | `message` | everything that travels |
//! | `version` | which versions of all these are spoken |
//! | `codec` | the bytes of all these |

mod answer;
mod codec;
mod message;
mod operation;
mod question;
mod version;

pub use answer::{Answer, Attributes, Code, Failure, Granted, Listed, Shape, Statistics};
pub use codec::{BODY_BYTES_MAX, HEADER_BYTES, Header};
pub use message::{Held, Hello, Locked, Message, Token, What};
pub use operation::{Changes, FileId, Mapped, Operation, TimeChange};
pub use question::Question;
pub use version::{VERSIONS, common_version, versions_differ};
