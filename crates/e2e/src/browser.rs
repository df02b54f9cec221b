//! Chromium without a window, driven by its DevTools protocol over two named pipes.
//!
//! Owns: the process, commands and their answers, and the complaints of pages: what they write to the console as an
//! error or a warning, exceptions, and what did not load. A message is JSON with a zero byte after it.
//! Leaves to others: what a page should do (the campaigns).

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::guard::{self, GuardedProcess, find_program};

/// The longest time of a command.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// The time between two looks at a page.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// The names of the program.
const PROGRAMS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// A browser with one page.
#[derive(Debug)]
pub struct Browser {
    process: GuardedProcess,
    commands: File,
    messages: Receiver<Value>,
    last_id: u64,
    session: String,
    complaints: Vec<String>,
}

impl Browser {
    /// Returns the program, if there is one.
    pub fn find() -> Option<PathBuf> {
        PROGRAMS.iter().find_map(|name| find_program(name))
    }

    /// Starts the program with an empty profile in `folder`, and opens an empty page.
    pub fn start(program: &Path, folder: &Path) -> Result<Browser> {
        let [commands, messages] = ["commands", "messages"].map(|name| folder.join(name));
        let mut make = Command::new("mkfifo");
        make.args([&commands, &messages]);
        let (status, text) = guard::run("mkfifo", make, &folder.join("mkfifo.log"), ANSWER_MAX)?;
        if !status.success() {
            bail!("mkfifo: {}: {text}", guard::describe(status));
        }
        // The browser reads commands from its third descriptor and writes messages to its fourth.
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg("commands=$1; messages=$2; shift 2; exec \"$@\" 3<\"$commands\" 4>\"$messages\"")
            .arg("sh");
        command
            .args([&commands, &messages])
            .arg(program)
            .arg(format!("--user-data-dir={}", folder.join("profile").display()));
        command.args([
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-sandbox",
            "--no-first-run",
            "--no-default-browser-check",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-extensions",
            "--disable-component-update",
            "--disable-background-networking",
            "--disable-sync",
            "--hide-scrollbars",
            "--force-color-profile=srgb",
            "about:blank",
        ]);
        let process = GuardedProcess::spawn("chromium", command, &folder.join("chromium.log"), None)?;
        // Opening a pipe waits for its other end.
        let commands = File::options().write(true).open(&commands)?;
        let from = File::open(&messages)?;
        let (give, messages) = channel();
        std::thread::Builder::new().name("browser".to_owned()).spawn(move || {
            for message in BufReader::new(from).split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else { continue };
                if give.send(message).is_err() {
                    return;
                }
            }
        })?;
        let (session, complaints) = (String::new(), Vec::new());
        let mut browser = Browser { process, commands, messages, last_id: 0, session, complaints };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }))?;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", attach)?;
        browser.session = attached["sessionId"].as_str().context("no session")?.to_owned();
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}))?;
        }
        Ok(browser)
    }

    /// Sends a command and waits for its answer.
    pub fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.last_id += 1;
        let mut command = json!({ "id": self.last_id, "method": method, "params": params });
        if !self.session.is_empty() {
            command["sessionId"] = self.session.clone().into();
        }
        self.commands.write_all(format!("{command}\0").as_bytes()).with_context(|| self.process.log_tail())?;
        let deadline = Instant::now() + ANSWER_MAX;
        loop {
            let message = match self.messages.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => bail!("{method}: no answer in {ANSWER_MAX:?}"),
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("{method}: the browser ended\n{}", self.process.log_tail())
                }
            };
            if message["id"] != self.last_id {
                self.hear(&message);
            } else if message["error"].is_object() {
                bail!("{method}: {}", message["error"]);
            } else {
                return Ok(message["result"].clone());
            }
        }
    }

    /// Keeps what an event says that is wrong with a page.
    fn hear(&mut self, event: &Value) {
        let params = &event["params"];
        let text = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => params["exceptionDetails"].to_string(),
            Some("Runtime.consoleAPICalled")
                if ["error", "warning", "assert"].iter().any(|kind| params["type"] == *kind) =>
            {
                params["args"].to_string()
            }
            Some("Log.entryAdded") if ["error", "warning"].iter().any(|level| params["entry"]["level"] == *level) => {
                format!("{} {}", params["entry"]["text"], params["entry"]["url"])
            }
            _ => return,
        };
        self.complaints.push(text);
    }

    /// Takes the complaints of pages so far.
    pub fn complaints(&mut self) -> Result<Vec<String>> {
        // The answer comes after all events before it.
        self.evaluate("0")?;
        Ok(std::mem::take(&mut self.complaints))
    }

    /// Opens a URL; the page may still be loading.
    pub fn open(&mut self, url: &str) -> Result<()> {
        let opened = self.call("Page.navigate", json!({ "url": url }))?;
        match opened["errorText"].as_str() {
            Some(error) => bail!("{url}: {error}"),
            None => Ok(()),
        }
    }

    /// The value of an expression of JavaScript. *Errors*: it throws.
    pub fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let params = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", params)?;
        if answer["exceptionDetails"].is_object() {
            bail!("{expression}: {}", answer["exceptionDetails"]["exception"]["description"]);
        }
        Ok(answer["result"]["value"].clone())
    }

    /// Waits until an expression is true; one that throws is not.
    pub fn wait_for(&mut self, expression: &str, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let found = self.evaluate(&format!("Boolean({expression})"));
            if matches!(found, Ok(Value::Bool(true))) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!("not so after {limit:?}: {expression} ({found:?})");
            }
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    /// Gives the page this size, and a reader who likes it dark or light.
    pub fn look(&mut self, width: u32, height: u32, scheme: &str) -> Result<()> {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size)?;
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }))?;
        Ok(())
    }

    /// The part of the page that is seen, as PNG.
    pub fn screenshot(&mut self) -> Result<Vec<u8>> {
        let shot = self.call("Page.captureScreenshot", json!({ "format": "png", "optimizeForSpeed": false }))?;
        decode_base64(shot["data"].as_str().context("no picture")?).context("the picture is not base64")
    }
}

/// Decodes base64 with padding. *Source*: RFC 4648, 4.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.trim_end_matches('=').as_bytes();
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for group in digits.chunks(4) {
        let mut bits = 0u32;
        for digit in group {
            bits = bits << 6 | DIGITS.iter().position(|known| known == digit)? as u32;
        }
        bits <<= 6 * (4 - group.len());
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_decoded() {
        for (text, bytes) in [
            ("", &b""[..]),
            ("Zg==", b"f"),
            ("Zm8=", b"fo"),
            ("Zm9v", b"foo"),
            ("Zm9vYmE=", b"fooba"),
            ("/+8A", &[255, 239, 0]),
        ] {
            assert_eq!(decode_base64(text).as_deref(), Some(bytes), "{text}");
        }
        assert_eq!(decode_base64("Zm9*"), None);
    }
}
