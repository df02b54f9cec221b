//! A registry of npm packages on loopback, with packages that depend on each other, in two versions, and have programs.
//!
//! Owns: the packages, which are made on a local disk and served from memory until the process ends.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use serde_json::{Value, json};

use super::{ProgramScale, run, tool};
use crate::clients::small_server;
use crate::http::HttpResponse;
use crate::scratch::ScratchFolder;

/// The package on which many others depend, in one of two versions.
const SHARED: &str = "nectary-shared";
/// The files of a folder of a package.
const FILES_PER_FOLDER: u64 = 10;

/// A registry.
pub(super) struct NpmRegistry {
    /// Its address.
    pub url: String,
    /// The number of its packages; a package in two versions is two.
    pub packages: u64,
    /// The first package: it depends, over others, on all of them.
    pub first: String,
}

impl NpmRegistry {
    /// Makes the packages and serves them.
    pub fn start(scale: ProgramScale) -> Result<NpmRegistry> {
        let (count, files) = (scale.of(24, 200), scale.of(10, 50));
        let scratch = ScratchFolder::new("npm-registry")?;
        let mut documents = BTreeMap::<String, Vec<PackageVersion>>::new();
        for index in 0..count {
            let package = PackageVersion::of_tree(index, count);
            documents.entry(package.name.clone()).or_default().push(package);
        }
        documents.insert(SHARED.to_owned(), ["1.0.0", "2.0.0"].map(PackageVersion::shared).into());
        let mut archives = BTreeMap::new();
        for package in documents.values().flatten() {
            archives.insert(package.archive(), package.pack(&scratch, files)?);
        }
        let packages = archives.len() as u64;
        let address = small_server::start(Arc::new(move |_, target, headers| {
            let host = headers.iter().find(|(name, _)| name == "host").map_or("", |(_, value)| value);
            let target = target.split('?').next().unwrap_or_default().replace("%2f", "/").replace("%2F", "/");
            let (kind, body) = if let Some(bytes) = archives.get(&target) {
                ("application/octet-stream", bytes.clone())
            } else if let Some(versions) = documents.get(target.trim_start_matches('/')) {
                ("application/json", document(versions, host).to_string().into_bytes())
            } else {
                return HttpResponse { status: 404, ..HttpResponse::default() };
            };
            HttpResponse { status: 200, headers: vec![("content-type".to_owned(), kind.to_owned())], body }
        }))?;
        Ok(NpmRegistry { url: format!("http://{address}"), packages, first: tree_name(0) })
    }
}

/// A version of a package.
struct PackageVersion {
    name: String,
    version: &'static str,
    dependencies: BTreeMap<String, String>,
    /// The name of its program, if it has one.
    program: Option<String>,
    /// The seed of its files.
    seed: u64,
}

/// The name of a package of the tree; some names have a scope.
fn tree_name(index: u64) -> String {
    if index % 10 == 9 { format!("@nectary-tree/part-{index:03}") } else { format!("nectary-tree-{index:03}") }
}

impl PackageVersion {
    /// A package of a binary tree of dependencies. Half of them also depend on one version of the shared package or the
    /// other, which makes npm install it in many places.
    fn of_tree(index: u64, count: u64) -> PackageVersion {
        let children = [2 * index + 1, 2 * index + 2].into_iter().filter(|child| *child < count);
        let mut dependencies: BTreeMap<_, _> = children.map(|child| (tree_name(child), "1.0.0".to_owned())).collect();
        match index % 6 {
            0 | 1 => drop(dependencies.insert(SHARED.to_owned(), "^1.0.0".to_owned())),
            2 => drop(dependencies.insert(SHARED.to_owned(), "2.0.0".to_owned())),
            _ => {}
        }
        let program = index.is_multiple_of(4).then(|| format!("nectary-tool-{index:03}"));
        PackageVersion { name: tree_name(index), version: "1.0.0", dependencies, program, seed: index }
    }

    fn shared(version: &'static str) -> PackageVersion {
        let (dependencies, program) = (BTreeMap::new(), Some(SHARED.to_owned()));
        PackageVersion {
            name: SHARED.to_owned(),
            version,
            dependencies,
            program,
            seed: u64::from(version.as_bytes()[0]),
        }
    }

    /// The path of its archive in the registry.
    fn archive(&self) -> String {
        format!("/-/{}-{}.tgz", self.name.replace(['@', '/'], "_"), self.version)
    }

    fn manifest(&self) -> Value {
        let mut manifest =
            json!({ "name": self.name, "version": self.version, "dependencies": self.dependencies, "main": "0/0.js" });
        if let Some(program) = &self.program {
            manifest["bin"] = json!({ program.as_str(): "tool.js" });
        }
        manifest
    }

    /// Makes the archive.
    fn pack(&self, scratch: &ScratchFolder, files: u64) -> Result<Vec<u8>> {
        let folder = scratch.join("package");
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("package.json"), format!("{:#}\n", self.manifest()))?;
        if self.program.is_some() {
            fs::write(
                folder.join("tool.js"),
                "#!/usr/bin/env node\nconsole.log(require('./package.json').version);\n",
            )?;
            fs::set_permissions(folder.join("tool.js"), fs::Permissions::from_mode(0o755))?;
        }
        for file in 0..files {
            self.write_file(&folder, file)?;
        }
        let archive = scratch.join("archive.tgz");
        run(tool("tar")
            .args(["--owner=0", "--group=0", "-czf"])
            .arg(&archive)
            .arg("-C")
            .arg(scratch.path())
            .arg("package"))?;
        fs::remove_dir_all(folder)?;
        Ok(fs::read(archive)?)
    }

    fn write_file(&self, folder: &Path, file: u64) -> Result<()> {
        let folder = folder.join((file / FILES_PER_FOLDER).to_string());
        fs::create_dir_all(&folder)?;
        let mut text = String::new();
        for line in 0..4 + (self.seed * 31 + file * 17) % 80 {
            writeln!(text, "// {} {} {file} {line} {}", self.name, self.version, crate::rng::mix(self.seed + line))?;
        }
        Ok(fs::write(folder.join(format!("{}.js", file % FILES_PER_FOLDER)), text)?)
    }
}

/// The document that describes a package to npm.
fn document(versions: &[PackageVersion], host: &str) -> Value {
    let mut all = json!({});
    for package in versions {
        let mut manifest = package.manifest();
        manifest["dist"] = json!({ "tarball": format!("http://{host}{}", package.archive()) });
        all[package.version] = manifest;
    }
    let latest = versions.last().map_or("", |package| package.version);
    json!({ "name": versions[0].name, "dist-tags": { "latest": latest }, "versions": all })
}
