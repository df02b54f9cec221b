//! The bytes of messages.
//!
//! | file | what is in it |
//! |---|---|
//! | `frame` | the header of every message |
//! | `parts` | what several bodies have |
//! | `operation`, `question`, `answer` | bodies of these |
//! | `message` | bodies of the others, and which kind has which number |

mod answer;
mod frame;
mod message;
mod operation;
mod parts;
mod question;
#[cfg(test)]
mod tests;

pub use frame::{BODY_BYTES_MAX, HEADER_BYTES, Header};
