//! Parity that is changed in place: the parts of the machine that differ from a mirror's.
//!
//! Owns: reads, changes, copies and the scrub of stripes with parity. Promises: what `mirror` promises, with these
//! differences. Leaves to others: attaching, membership, marks, and the order of
//! operations, which are those of a mirror.
//!
//! 1. If no change of a stripe is in progress, the XOR of all its members is zero, donors that are not trusted counting
//!    as what the others yield. So one member of each stripe may be missing.
//! 2. Changes of the same columns wait for each other, even if their blocks differ, because they change the same
//!    parity.
//! 3. The new parity of a row is computed before anything is sent, and is sent together with the data. Whichever donors
//!    are left meanwhile, it stays the right one.
//! 4. A stripe is changed only while both its markers that are not left have stored its mark. So after a crash of the
//!    client, one present donor knows every stripe whose parity may be wrong.
//! 5. If all donors are there, the parity of these stripes is computed again. If one is missing, what it had of them
//!    cannot be known: `lost`.
//!
//! | file | what is in it |
//! |---|---|
//! | `rows` | which donor has what, and how ranges are cut |
//! | `members` | reading the members of a stripe |
//! | `reads` | a user's read |
//! | `changes` | a user's change |
//! | `copies` | the new parity after a crash, the rebuild of a donor, the repair of wrong bytes |
//! | `lost` | the bytes that stand for a lost block |
//! | `scrub` | the comparison of all members |
//!
//! *Cost*: a read is one request. A write of less than a row is two reads and two writes for one block, or fewer if the
//! other members are fewer to read; a write of all data members reads nothing. If the stripe was not marked, two small
//! requests more.

mod changes;
mod copies;
pub(crate) mod lost;
mod members;
mod reads;
pub(crate) mod rows;
mod scrub;

#[cfg(test)]
mod tests;
