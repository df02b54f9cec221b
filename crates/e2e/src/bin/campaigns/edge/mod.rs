//! What the proxy is for those outside: certificates from an authority, HTTP/2, the operators' page in a browser, its
//! configuration file, and several proxies as a fleet.

pub mod acme;
pub mod admin_page;
pub mod configurations;
pub mod fleet;
pub mod fleet_figures;
pub mod http2_spec;
