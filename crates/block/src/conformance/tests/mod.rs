//! The conformance test itself: every device and filter of this crate passes, and planted bad devices are caught.

mod bad;
mod good;
