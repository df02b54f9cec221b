//! Programs that make a load of requests and measure it.

pub mod h2load;
pub mod wrk;
