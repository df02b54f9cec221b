//! Mounts of a volume whose server loses its disk, its processor or its network, while another server takes over.
//!
//! The files, in the order of a round: `plan` draws what goes wrong, `site` runs servers, exports and mounts, `relay`
//! stands for the network between them, `script` does what the plan says, `load`, `jobs` and `worker` make calls on the
//! mounts, `history` records the calls, `losses`, `registers`, `sizes`, `claims`, `locks` and `gaps` judge them, and
//! `campaign` puts all of this together.
//!
//! Promises: what is judged is only what programs saw (calls with their begin, their end and their result, on one
//! clock), what the processes printed, and how they ended.

pub mod campaign;
mod claims;
mod gaps;
mod history;
mod jobs;
mod load;
mod locks;
mod losses;
pub mod plan;
mod registers;
pub mod relay;
mod script;
pub mod site;
mod sizes;
mod worker;
