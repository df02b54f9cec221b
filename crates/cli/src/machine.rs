//! Facts about this machine: the memory of this process, and the program that listens on an address.
//!
//! Owns: reading these facts from `/proc`. A fact that cannot be read is unknown, which is not an error.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// Returns the memory of this process that is in the machine's memory. *Units*: bytes.
pub fn resident_bytes() -> Option<u64> {
    value_bytes(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

/// Returns the number of file descriptors that are open. *Cost*: reads a directory, if the kernel is older than 6.2.
pub fn open_descriptors() -> Option<u64> {
    // Newer kernels show the number as the size of the directory, older ones a size of 0.
    let shown = fs::metadata("/proc/self/fd").ok()?.len();
    Some(if shown > 0 { shown } else { nectary_host::descriptors::open_now() })
}

/// Returns a value of a table whose lines are like `MemTotal: 8000000 kB`.
fn value_bytes(table: &str, name: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the program that listens on an address, or on its port for all addresses, for example `nginx (process 123)`;
/// `None` if this user may not see it.
pub fn who_listens(address: SocketAddr) -> Option<String> {
    let inodes: Vec<u64> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| listening_inodes(&table, address.port()).collect::<Vec<_>>())
        .collect();
    who_has(&inodes)
}

/// Returns the program that listens on a Unix socket; `None` if this user may not see it.
pub fn who_listens_at(path: &Path) -> Option<String> {
    let table = fs::read("/proc/net/unix").ok()?;
    who_has(&listening_paths(&String::from_utf8_lossy(&table), &path.to_string_lossy()))
}

/// Returns the programs that have one of these sockets.
fn who_has(inodes: &[u64]) -> Option<String> {
    let wanted: Vec<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let name = process.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(files) = fs::read_dir(process.path().join("fd")) else { continue };
        let has_it = |link: std::path::PathBuf| link.to_str().is_some_and(|link| wanted.iter().any(|it| it == link));
        if files.flatten().filter_map(|file| fs::read_link(file.path()).ok()).any(has_it) {
            let command = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            found.push(format!("{} (process {number})", command.trim()));
        }
    }
    (!found.is_empty()).then(|| found.join(", "))
}

/// Returns the sockets in a table of `/proc/net` that listen on a port.
fn listening_inodes(table: &str, port: u16) -> impl Iterator<Item = u64> {
    table.lines().skip(1).filter_map(move |line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let local = fields.next()?.rsplit_once(':')?.1;
        let state = fields.nth(1)?;
        let is_it = u16::from_str_radix(local, 16) == Ok(port) && state == "0A";
        fields.nth(5).filter(|_| is_it)?.parse().ok()
    })
}

/// Returns the sockets in the table of Unix sockets that listen on a path.
fn listening_paths(table: &str, path: &str) -> Vec<u64> {
    let inode = |line: &str| -> Option<u64> {
        let (fields, own) = line.split_at_checked(line.find(" /")? + 1)?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        // Number, references, protocol, flags, type, state, inode. A socket that accepts connections has this flag.
        let is_it = own == path && fields.get(3) == Some(&"00010000");
        fields.get(6).filter(|_| is_it)?.parse().ok()
    };
    table.lines().skip(1).filter_map(inode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_proc_are_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 31337 1 0 100 0 0 10 0\n   \
            1: 0100007F:1F90 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 31338 1 0 100 0 0 10 0\n\
            nonsense\n";
        assert_eq!(listening_inodes(table, 8080).collect::<Vec<_>>(), [31337]);
        assert_eq!(listening_inodes(table, 8081).count(), 0);
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 31339 /run/a b.sock\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 31340 /run/a b.sock\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 31341 @/run/a b.sock\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 31342\n";
        assert_eq!(listening_paths(table, "/run/a b.sock"), [31339]);
        assert!(listening_paths(table, "/run/a").is_empty());
        assert_eq!(value_bytes("VmSize: 1 kB\nVmRSS:       8000000 kB\n", "VmRSS:"), Some(8_192_000_000));
        assert_eq!(value_bytes("VmRSS: many", "VmRSS:"), None);
        assert!(resident_bytes().is_some_and(|bytes| bytes > 1 << 16));
        let before = open_descriptors().expect("a number");
        let file = fs::File::open("/proc/self/status").expect("a file");
        assert!(before >= 3 && open_descriptors().is_some_and(|open| open > 3), "{before}");
        drop(file);
    }
}
