//! git through a forward proxy, with a repository on loopback that is served as plain files.
//!
//! git's newer protocol uses `POST`, which no cache answers; the older one needs only plain files, which can be cached.
//! git requests the list of branches with `no-cache`.

use super::{ClientVerdict, Files, call, compare, finish, proxy, small_server, tree};
use crate::content;
use crate::guard::find_program;
use crate::http::HttpResponse;
use crate::scratch::ScratchFolder;
use anyhow::{Result, bail};
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// The number of files of the repository, and their length in bytes.
const FILES: u64 = 40;
const FILE_BYTES: u64 = 20_000;

/// Clones the repository twice.
pub fn run() -> Result<ClientVerdict> {
    if find_program("git").is_none() {
        return Ok(ClientVerdict::NotRun("git is not installed".to_owned()));
    }
    let scratch = ScratchFolder::new("git")?;
    make_repository(&scratch)?;
    let served = scratch.join("served");
    let origin =
        small_server::start(Arc::new(move |_: &str, target: &str, _: &[(String, String)]| file(&served, target)))?;
    let command = proxy(&scratch.join("proxy"), None, "1h")?;
    let nectary = command.start()?;
    let mut runs = [Files::new(), Files::new()];
    for (name, run) in ["first", "second"].into_iter().zip(&mut runs) {
        let url = format!("http://{origin}/repository.git");
        let through = format!("http.proxy=http://{}", nectary.listen);
        git(&scratch, &["-c", &through, "clone", "--quiet", &url, name])?;
        git(&scratch, &["-C", name, "fsck", "--strict"])?;
        *run = tree(&scratch.join(name))?;
        // Ignore git's own files, which contain times.
        run.retain(|name, _| !name.starts_with("/.git/"));
    }
    let lines = finish(nectary, &command)?;
    let mut right = tree(&scratch.join("work"))?;
    right.retain(|name, _| !name.starts_with("/.git/"));
    compare("git", &right, &runs, &lines, |url| url.ends_with(".pack") || url.ends_with(".idx"))
        .map(ClientVerdict::Kept)
}

/// Makes a packed repository with one commit, and its bare clone, which is served.
fn make_repository(scratch: &ScratchFolder) -> Result<()> {
    let work = scratch.join("work");
    std::fs::create_dir_all(&work)?;
    for number in 0..FILES {
        std::fs::write(work.join(format!("{number}")), content::body("/git", number, FILE_BYTES))?;
    }
    for arguments in [
        &["-C", "work", "init", "--quiet"][..],
        &["-C", "work", "add", "."],
        &["-C", "work", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "files"],
        &["clone", "--quiet", "--bare", "work", "served/repository.git"],
        &["-C", "served/repository.git", "repack", "-a", "-d", "-q"],
        &["-C", "served/repository.git", "update-server-info"],
    ] {
        git(scratch, arguments)?;
    }
    Ok(())
}

fn git(scratch: &ScratchFolder, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("git");
    command.args(arguments).current_dir(scratch.path());
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_TERMINAL_PROMPT", "0");
    let (good, text) = call("git", command, &scratch.join("git.log"))?;
    if !good {
        bail!("git {arguments:?}: {text}");
    }
    Ok(())
}

/// Serves a file below `folder`, and no file outside of it.
fn file(folder: &Path, target: &str) -> HttpResponse {
    let path = target.split('?').next().unwrap_or("").trim_start_matches('/');
    let is_inside = Path::new(path).components().all(|component| matches!(component, Component::Normal(_)));
    let path: PathBuf = folder.join(path);
    match std::fs::read(path).ok().filter(|_| is_inside) {
        Some(body) => {
            let kind = ("content-type".to_owned(), "application/octet-stream".to_owned());
            HttpResponse { status: 200, headers: vec![kind], body }
        }
        None => HttpResponse { status: 404, ..HttpResponse::default() },
    }
}
