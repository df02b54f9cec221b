//! The tests of this crate from the outside, in one program: its modules are the files of this folder.

mod cache_keeps_its_promises;
mod device_keeps_the_contract;
mod ten_thousand_streams_stay_in_memory;
mod users_hold_look_and_ask;
