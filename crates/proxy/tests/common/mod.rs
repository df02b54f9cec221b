//! The parts that all tests use: a proxy in this process, a scripted origin, and a client on a raw socket.
#![allow(dead_code, unused_imports)]

pub mod authority;
pub mod certificates;
pub mod client;
pub mod counting;
pub mod full_listener;
pub mod http2;
pub mod http2_server;
pub mod mined_device;
pub mod model_fleet;
pub mod names;
pub mod origin;
pub mod proxy;
pub mod sharing;
pub mod sites;
pub mod waiting;

pub use authority::AcmeServer;
pub use client::{ClientReply, TestClient, get, request};
pub use full_listener::FullListener;
pub use http2_server::{Http2Origin, LeavingServer};
pub use mined_device::{DeviceMine, MineFault};
pub use model_fleet::ModelFleet;
pub use names::{NameResponse, NameServer, TestNameFiles};
pub use origin::{OriginScript, TestOrigin};
pub use proxy::{AUTHORIZATION, TestProxy, options, token};
pub use waiting::until;
