//! What mounts and the metadata server say to each other: `docs/formats/volume-protocol.md` in code.
//!
//! Owns: operations, questions, answers and messages as values, and their bytes. Promises: a decoder gives an error, and
//! never panics or allocates beyond the frame it was given. Leaves to others: what they do, and how they travel.
//!
//! | file | what is in it |
//! |---|---|
//! | `operation` | what changes something |
//! | `question` | what changes nothing |
//! | `answer` | what both are answered with, and why one is refused |
//! | `message`, `codec` | everything that travels, and its bytes |

mod answer;
mod codec;
mod message;
mod operation;
mod question;

pub use answer::{Answer, Attributes, Code, Failure, Granted, Listed, Statistics};
pub use message::{HEADER_BYTES, Header, Hello, Message};
pub use operation::{Changes, FileId, Mapped, Operation, TimeChange};
pub use question::Question;
