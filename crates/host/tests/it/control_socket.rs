//! Tests of the control socket's promises, with clients that follow or break the protocol.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nectary_host::control::{parts, request};
use nectary_host::{
    ControlFault, ControlLimits, ControlMethods, ControlServer, Error, FaultKind, PartHealth, PartStatus,
    RuntimeDirectory,
};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(20);

/// The runtime directory of one test, which is removed at the test's end.
struct ScratchRuntime(RuntimeDirectory);

impl ScratchRuntime {
    fn new(name: &str) -> ScratchRuntime {
        let path = std::env::temp_dir().join(format!("nectary-test-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        ScratchRuntime(RuntimeDirectory::at(path).expect("a fresh directory"))
    }
}

impl Drop for ScratchRuntime {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.path());
    }
}

fn start(directory: &RuntimeDirectory, limits: ControlLimits) -> ControlServer {
    let mut methods = ControlMethods::new();
    methods.status(|| PartStatus::healthy("proxy", "127.0.0.1:1").with_problem(PartHealth::Degraded, "a", "b"));
    methods.register("echo", "gives its parameters back", |params| async move { Ok(params) });
    methods
        .register("fail", "fails", |_| async { Err(ControlFault::new(FaultKind::NotFound, "no such key", "put it")) });
    methods.register("hang", "never answers", |_| std::future::pending());
    ControlServer::start(directory, "proxy-127.0.0.1:1", methods, limits).expect("starts")
}

async fn ask(path: &Path, method: &'static str, params: Value) -> Result<Value, Error> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || request(&path, method, params, PATIENCE)).await.expect("no panic")
}

/// Sends bytes and returns everything that the server sends until it closes the connection.
async fn send_raw(path: &Path, bytes: Vec<u8>) -> String {
    let path = path.to_owned();
    let talk = move || {
        let mut stream = UnixStream::connect(path).expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("sets");
        let _ = stream.write_all(&bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).expect("text")
    };
    tokio::task::spawn_blocking(talk).await.expect("no panic")
}

#[tokio::test]
async fn methods_return_results_and_faults() {
    let scratch = ScratchRuntime::new("methods");
    let server = start(&scratch.0, ControlLimits::default());
    let path = server.path().to_owned();
    assert_eq!(ask(&path, "echo", json!({"a": [1, "ä"]})).await.expect("ok"), json!({"a": [1, "ä"]}));
    assert_eq!(ask(&path, "status", Value::Null).await.expect("ok")["state"], "degraded");
    assert_eq!(ask(&path, "methods", Value::Null).await.expect("ok")[0]["name"], "echo");
    let Err(Error::Fault { fault, .. }) = ask(&path, "fail", Value::Null).await else { panic!("a fault") };
    assert_eq!((fault.kind, fault.to_string().as_str()), (FaultKind::NotFound, "no such key; put it"));
    let Err(Error::Fault { fault, .. }) = ask(&path, "no", Value::Null).await else { panic!("a fault") };
    assert_eq!(fault.kind, FaultKind::UnknownMethod);
    server.stop().await;
}

#[tokio::test]
async fn socket_permits_owner_only() {
    let scratch = ScratchRuntime::new("mode");
    let server = start(&scratch.0, ControlLimits::default());
    let mode = std::fs::metadata(server.path()).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(std::fs::metadata(scratch.0.path()).expect("there").permissions().mode() & 0o777, 0o700);
    server.stop().await;
}

#[tokio::test]
async fn world_writable_directory_is_refused() {
    let scratch = ScratchRuntime::new("others");
    std::fs::set_permissions(scratch.0.path(), std::fs::Permissions::from_mode(0o777)).expect("sets");
    let refused = RuntimeDirectory::at(scratch.0.path()).expect_err("refused").to_string();
    assert!(refused.contains("mode 777") && refused.contains("NECTARY_RUNTIME_DIR"), "{refused}");
    let link = scratch.0.path().join("link");
    std::os::unix::fs::symlink(std::env::temp_dir(), &link).expect("links");
    assert!(RuntimeDirectory::at(link).is_err());
}

/// A request at the limit is answered, and one byte more is refused.
#[tokio::test]
async fn request_size_limit_is_enforced() {
    let scratch = ScratchRuntime::new("long");
    let limits = ControlLimits { request_bytes_max: 100, idle: Duration::from_millis(200), ..ControlLimits::default() };
    let server = start(&scratch.0, limits);
    let line = |bytes: usize| {
        let frame = r#"{"method":"echo","params":""}"#.len() + 1;
        format!("{{\"method\":\"echo\",\"params\":\"{}\"}}\n", "x".repeat(bytes - frame)).into_bytes()
    };
    assert_eq!((line(100).len(), line(101).len()), (100, 101));
    assert!(send_raw(server.path(), line(100)).await.contains(r#"{"ok":"xxx"#));
    let refused = send_raw(server.path(), line(101)).await;
    assert!(refused.contains("longer than 100 bytes"), "{refused}");
    let endless = send_raw(server.path(), vec![b'x'; 1 << 20]).await;
    assert!(endless.contains("longer than 100 bytes"), "{endless}");
    server.stop().await;
}

#[tokio::test]
async fn nonsense_is_answered_with_a_fault() {
    let scratch = ScratchRuntime::new("nonsense");
    let server = start(&scratch.0, ControlLimits { idle: Duration::from_millis(200), ..ControlLimits::default() });
    for nonsense in ["\n", "{}\n", "[1]\n", "GET / HTTP/1.1\r\n", "\u{0}\n", "{\"method\":1}\n"] {
        let answer = send_raw(server.path(), nonsense.as_bytes().to_vec()).await;
        assert!(answer.contains(r#""kind":"malformed""#), "{nonsense:?}: {answer}");
    }
    server.stop().await;
}

/// A silent client is dropped after the idle time.
#[tokio::test]
async fn silent_client_is_dropped() {
    let scratch = ScratchRuntime::new("silent");
    let server = start(&scratch.0, ControlLimits { idle: Duration::from_millis(50), ..ControlLimits::default() });
    assert_eq!(send_raw(server.path(), b"{\"method\":".to_vec()).await, "");
    server.stop().await;
}

#[tokio::test]
async fn excess_client_is_sent_away() {
    let scratch = ScratchRuntime::new("crowd");
    let server = start(&scratch.0, ControlLimits { connections_max: 2, ..ControlLimits::default() });
    let path = server.path().to_owned();
    let crowd: Vec<_> = (0..2).map(|_| UnixStream::connect(&path).expect("connects")).collect();
    let Err(Error::Fault { fault, .. }) = ask(&path, "status", Value::Null).await else { panic!("a fault") };
    assert_eq!(fault.kind, FaultKind::Busy);
    drop(crowd);
    loop {
        // The server notices only at its next read that the two clients have disconnected.
        match ask(&path, "status", Value::Null).await {
            Ok(_) => break,
            Err(Error::Fault { fault, .. }) if fault.kind == FaultKind::Busy => {}
            Err(error) => panic!("{error}"),
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn only_stale_socket_is_replaced() {
    let scratch = ScratchRuntime::new("stale");
    let socket = scratch.0.socket("proxy-127.0.0.1:1").expect("short");
    drop(UnixListener::bind(&socket).expect("binds"));
    assert!(socket.exists(), "a killed process leaves its socket");
    let server = start(&scratch.0, ControlLimits::default());
    let second = ControlServer::start(&scratch.0, "proxy-127.0.0.1:1", ControlMethods::new(), ControlLimits::default());
    assert!(matches!(second, Err(Error::Busy { .. })));
    assert!(ask(server.path(), "status", Value::Null).await.is_ok());
    server.stop().await;
}

#[tokio::test]
async fn replaced_methods_answer_later_clients() {
    let scratch = ScratchRuntime::new("replaced");
    let server = start(&scratch.0, ControlLimits::default());
    let mut methods = ControlMethods::new();
    methods.status(|| PartStatus::healthy("proxy", "127.0.0.1:1"));
    server.replace(methods);
    assert_eq!(ask(server.path(), "status", Value::Null).await.expect("ok")["state"], "healthy");
    assert!(matches!(ask(server.path(), "echo", Value::Null).await, Err(Error::Fault { .. })), "it is replaced");
    server.stop().await;
}

/// A stop ends calls in progress and removes the socket.
#[tokio::test]
async fn stop_removes_socket() {
    let scratch = ScratchRuntime::new("stop");
    let server = start(&scratch.0, ControlLimits::default());
    let path: PathBuf = server.path().to_owned();
    let hanging = tokio::spawn({
        let path = path.clone();
        async move { ask(&path, "hang", Value::Null).await }
    });
    // Connections are accepted in order. When this request is answered, the hanging request has been accepted or will
    // be refused.
    assert!(ask(&path, "status", Value::Null).await.is_ok());
    server.stop().await;
    assert!(hanging.await.expect("no panic").is_err());
    assert!(!path.exists());
    assert!(matches!(ask(&path, "status", Value::Null).await, Err(Error::Absent { .. })));
}

/// The list has the running parts, and sockets of dead parts are removed.
#[tokio::test]
async fn part_list_removes_dead_sockets() {
    let scratch = ScratchRuntime::new("parts");
    let stale = scratch.0.socket("proxy-old").expect("short");
    drop(UnixListener::bind(&stale).expect("binds"));
    let server = start(&scratch.0, ControlLimits::default());
    let directory = scratch.0.clone();
    let found =
        tokio::task::spawn_blocking(move || parts(&directory, PATIENCE)).await.expect("no panic").expect("reads");
    assert_eq!(found.len(), 1);
    let status = found[0].status.as_ref().expect("answers");
    assert_eq!((status.component.as_str(), status.state), ("proxy", PartHealth::Degraded));
    assert!(!stale.exists());
    server.stop().await;
}

#[tokio::test]
async fn malformed_answer_is_error() {
    let scratch = ScratchRuntime::new("impostor");
    for answer in ["", "no newline", "\n", "{\"neither\":1}\n", "\u{0}\u{1}\n"] {
        let socket = scratch.0.socket("impostor").expect("short");
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).expect("binds");
        let impostor = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accepts");
            let mut question = [0; 512];
            let _ = stream.read(&mut question);
            let _ = stream.write_all(answer.as_bytes());
        });
        assert!(matches!(ask(&socket, "status", Value::Null).await, Err(Error::Protocol { .. })), "{answer:?}");
        impostor.join().expect("no panic");
    }
}
