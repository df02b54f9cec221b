//! What the proxy is for those outside: certificates from an authority, HTTP/2, the operators' page in a browser, and its
//! configuration file.

pub mod acme;
pub mod admin_page;
pub mod configurations;
pub mod http2_spec;
