//! The encoding of messages.
//!
//! | file | what is in it |
//! |---|---|
//! | `frame` | the header of every message |
//! | `parts` | values that several bodies contain |
//! | `operation`, `question`, `answer` | bodies of operations, questions and answers |
//! | `message` | bodies of all other messages, and the number of each kind |

mod answer;
mod frame;
mod message;
mod operation;
mod parts;
mod question;
#[cfg(test)]
mod tests;

pub use frame::{BODY_BYTES_MAX, HEADER_BYTES, MessageHeader};
