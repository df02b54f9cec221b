//! Tests of the conformance test itself: every device and filter of this crate passes, and deliberately bad devices are
//! caught.

mod bad;
mod good;
