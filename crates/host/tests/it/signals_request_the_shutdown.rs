//! SIGTERM requests the shutdown and does not end the process.

use std::process::Command;

use nectary_host::Shutdown;

#[tokio::test]
async fn signals_request_the_shutdown() {
    let shutdown = Shutdown::new();
    let watch = shutdown.on_signals().expect("handlers can be set");
    let sent = Command::new("sh").args(["-c", &format!("kill -TERM {}", std::process::id())]).status();
    assert!(sent.expect("sh is there").success());
    shutdown.requested().await;
    drop(watch);
}
