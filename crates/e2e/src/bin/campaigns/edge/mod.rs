//! What the proxy is for those outside: certificates from an authority, HTTP/2, and the operators' page in a browser.

pub mod acme;
pub mod admin_page;
pub mod http2_spec;
