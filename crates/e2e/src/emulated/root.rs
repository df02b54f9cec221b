//! The first file system of an emulated machine: programs of this host with their libraries, and modules of the
//! machine's kernel.
//!
//! Promises: `/modules/order` lists each module after those that it needs. busybox provides all other programs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{InstalledKernel, program};
use crate::guard;

/// The longest time that a program of this host may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A file system under construction, in a directory.
pub struct InitialFileSystem {
    folder: PathBuf,
}

impl InitialFileSystem {
    /// Makes an almost empty root directory, in a new directory, with busybox and the usual directories of a system.
    pub fn new(folder: &Path) -> Result<InitialFileSystem> {
        for name in ["bin", "dev", "etc", "mnt", "modules", "proc", "sys", "tmp"] {
            std::fs::create_dir_all(folder.join(name))?;
        }
        // Some of the programs read the list of mounted file systems from here.
        std::os::unix::fs::symlink("/proc/mounts", folder.join("etc/mtab"))?;
        let root = InitialFileSystem { folder: folder.to_owned() };
        std::fs::copy(program("busybox")?, folder.join("bin/busybox"))?;
        Ok(root)
    }

    /// Adds a program of this host, in `/bin`, with the libraries that it is linked with.
    pub fn add_program(&self, name: &str) -> Result<()> {
        let path = program(name)?;
        std::fs::copy(&path, self.folder.join("bin").join(name))?;
        let mut command = Command::new("ldd");
        command.arg(&path);
        let (status, text) = guard::run("ldd", command, &self.beside("ldd.log"), PATIENCE)?;
        let _ = std::fs::remove_file(self.beside("ldd.log"));
        if !status.success() {
            bail!("ldd {}: {text}", path.display());
        }
        for library in text.split_whitespace().filter(|word| word.starts_with('/')) {
            let target = self.folder.join(library.trim_start_matches('/'));
            std::fs::create_dir_all(target.parent().context("a library is in a directory")?)?;
            std::fs::copy(library, target).with_context(|| format!("cannot copy {library}"))?;
        }
        Ok(())
    }

    /// Adds modules of a kernel, and the modules that they need.
    pub fn add_modules(&self, kernel: &InstalledKernel, names: &[&str]) -> Result<()> {
        let mut order = String::new();
        for file in module_files(&kernel.modules, names)? {
            let name = file.file_name().and_then(|name| name.to_str()).context("a module has a name")?;
            std::fs::copy(&file, self.folder.join("modules").join(name))?;
            order += &format!("{name}\n");
        }
        Ok(std::fs::write(self.folder.join("modules/order"), order)?)
    }

    /// Adds a script as `/NAME`; the machine runs `/init`.
    pub fn add_script(&self, name: &str, text: &str) -> Result<()> {
        let path = self.folder.join(name);
        std::fs::write(&path, text)?;
        Ok(std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?)
    }

    /// Packs the file system in the format that the kernel needs; returns the packed file.
    pub fn pack(&self) -> Result<PathBuf> {
        let packed = self.beside("packed.cpio");
        let mut command = Command::new("sh");
        command.current_dir(&self.folder).arg("-c").arg("find . | busybox cpio -o -H newc > \"$0\"").arg(&packed);
        let (status, text) = guard::run("busybox cpio", command, &self.beside("pack.log"), PATIENCE)?;
        if !status.success() {
            bail!("busybox cpio: {}\n{text}", guard::describe(status));
        }
        Ok(packed)
    }

    fn beside(&self, name: &str) -> PathBuf {
        self.folder.with_file_name(name)
    }
}

/// Returns the files of these modules (such as `nbd.ko`) and of the modules that they need, in loading order.
///
/// *Errors*: the kernel has no such module, or its modules are compressed.
pub fn module_files(modules: &Path, names: &[&str]) -> Result<Vec<PathBuf>> {
    let index = modules.join("modules.dep");
    let text = std::fs::read_to_string(&index).with_context(|| format!("cannot read {}", index.display()))?;
    let (mut files, mut known) = (Vec::new(), BTreeSet::new());
    for name in names {
        let line = text.lines().find(|line| {
            let path = line.split(':').next().unwrap_or_default();
            path.rsplit('/').next() == Some(name)
        });
        let line = line.with_context(|| format!("{} has no {name}", index.display()))?;
        let (own, needed) = line.split_once(':').context("a line of modules.dep has a colon")?;
        // The needed modules are listed in reverse loading order.
        for path in needed.split_whitespace().rev().chain([own]) {
            if known.insert(path.to_owned()) {
                files.push(modules.join(path));
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::ScratchFolder;

    #[test]
    fn modules_come_after_those_they_need() {
        let scratch = ScratchFolder::new("modules").unwrap();
        let lines =
            "kernel/a.ko:\nkernel/b.ko: kernel/a.ko\nkernel/c.ko: kernel/b.ko kernel/a.ko\nkernel/d.ko: kernel/a.ko\n";
        std::fs::write(scratch.join("modules.dep"), lines).unwrap();
        let files = module_files(scratch.path(), &["c.ko", "d.ko"]).unwrap();
        let names: Vec<&str> = files.iter().filter_map(|file| file.file_name()?.to_str()).collect();
        assert_eq!(names, ["a.ko", "b.ko", "c.ko", "d.ko"]);
        assert!(module_files(scratch.path(), &["e.ko"]).is_err());
    }
}
