//! Names that hosts make and remove themselves, with real clients and a real server: seeded programs on three hosts,
//! behind networks that delay, stall and cut, with losses of hosts and servers.
//!
//! Owns: the program, and the model that says what every call must return. Promises: the clock is virtual; calls of one
//! step overlap, and those of different steps do not, so the model is exact: what a call returned is seen by every later
//! call on every host; what a living host was told is done stays done when the server is lost; of a lost host at most
//! its last calls are lost, as a suffix. Leaves to others: data (`volume_clients`), single messages (`volume`).
//!
//! | file | what is in it |
//! |---|---|
//! | `model` | the names and inodes that the calls so far give |
//! | `program` | calls, losses, and their checks |
//! | `run` | many programs, with and without planted bugs |

mod model;
mod program;
pub mod run;
