//! The system calls that refer to blocks, and the meaning of their arguments: one table for the filter and the decoder.
//!
//! Owns: the calls' numbers and the meaning of their arguments. Promises: [`decode`] is a pure function. Leaves to
//! others: reading the process's descriptors and memory.
#![forbid(unsafe_code)]

/// The maximum number of bytes that one call moves; Linux moves no more, even if a call requests more.
pub(super) const CALL_BYTES_MAX: u64 = 0x7fff_f000;

/// The kernel's number for this architecture, which a seccomp filter compares.
#[cfg(target_arch = "x86_64")]
pub(super) const MACHINE: Option<u32> = Some(0xc000_003e);
/// The kernel's number for this architecture, which a seccomp filter compares.
#[cfg(target_arch = "aarch64")]
pub(super) const MACHINE: Option<u32> = Some(0xc000_00b7);
/// No number: recording is not supported on other architectures.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) const MACHINE: Option<u32> = None;

/// The number of the machine's 32-bit interface, and the numbers of its calls that refer to blocks: read, write, readv,
/// writev, pread64, pwrite64, sendfile, mmap, mmap2, sendfile64, splice, preadv, pwritev, io_submit, copy_file_range,
/// preadv2, pwritev2.
#[cfg(target_arch = "x86_64")]
pub(super) const MACHINE_32: (u32, &[u32]) =
    (0x4000_0003, &[3, 4, 145, 146, 180, 181, 187, 90, 192, 239, 313, 333, 334, 248, 377, 378, 379]);
/// The same numbers for 32-bit ARM.
#[cfg(not(target_arch = "x86_64"))]
pub(super) const MACHINE_32: (u32, &[u32]) =
    (0x4000_0028, &[3, 4, 145, 146, 180, 181, 187, 192, 239, 340, 361, 362, 246, 391, 392, 393]);

/// The bit that is set in the numbers of calls of the x32 interface. If such a call has a number that this file lists,
/// it counts as a 32-bit call.
pub(super) const X32_BIT: u32 = 0x4000_0000;

/// The place where a transfer begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TransferOffset {
    /// The transfer begins at the descriptor's position.
    Position,
    /// The transfer begins at this offset.
    At(u64),
    /// The transfer begins at the offset that is stored at this address of the process; at the descriptor's position if
    /// the address is 0.
    Pointer(u64),
}

/// The number of bytes that the call requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TransferLength {
    /// The call gives the number of bytes.
    Bytes(u64),
    /// The number of bytes is the sum of the lengths in a vector.
    Vector {
        /// The address of the vector.
        address: u64,
        /// The number of entries of the vector.
        count: u64,
    },
}

/// One side of a transfer, which reads from a descriptor or writes to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TransferSide {
    pub(super) fd: i32,
    pub(super) offset: TransferOffset,
    pub(super) is_write: bool,
}

/// The kinds of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SystemCall {
    /// Transfers bytes from or to a descriptor.
    Transfer(TransferSide, TransferLength),
    /// Copies bytes from one descriptor to another.
    Copy(TransferSide, TransferSide, u64),
    /// Maps a file.
    Map { fd: i32, bytes: u64, offset: u64, is_executable: bool, is_written: bool },
    /// Executes another program in the process.
    Exec,
    /// Creates an io_uring.
    IoUring,
    /// Submits asynchronous requests, which the recorder does not see.
    IoSubmit,
    /// A call of the 32-bit interface.
    Call32,
}

/// The numbers of the calls that read.
pub(super) const READS: &[i64] =
    &[libc::SYS_read, libc::SYS_pread64, libc::SYS_readv, libc::SYS_preadv, libc::SYS_preadv2];

/// The numbers of the calls that write and do not read.
pub(super) const WRITES: &[i64] =
    &[libc::SYS_write, libc::SYS_pwrite64, libc::SYS_writev, libc::SYS_pwritev, libc::SYS_pwritev2];

/// The calls that read from one descriptor and write to another, and the other calls that wait for the recorder, except
/// mmap.
pub(super) const OTHERS: &[i64] = &[
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_io_uring_setup,
    libc::SYS_io_submit,
];

/// The meaning of the call `number` of the interface `machine` with these arguments; `None` if the recorder does not
/// handle this call.
pub(super) fn decode(machine: u32, number: i32, arguments: &[u64; 6]) -> Option<SystemCall> {
    if Some(machine) != MACHINE || number as u32 & X32_BIT != 0 {
        return Some(SystemCall::Call32);
    }
    let a = arguments;
    let fd = |index: usize| a[index] as i32;
    let side = |index: usize, offset: TransferOffset, is_write: bool| TransferSide { fd: fd(index), offset, is_write };
    let bytes = |index: usize| TransferLength::Bytes(a[index].min(CALL_BYTES_MAX));
    let vector = TransferLength::Vector { address: a[1], count: a[2] };
    // The argument with the second half of the offset is used only on 32-bit machines. For preadv2 and pwritev2, -1
    // means the descriptor's position.
    let at_or_position =
        |offset: u64| if offset == u64::MAX { TransferOffset::Position } else { TransferOffset::At(offset) };
    Some(match i64::from(number) {
        libc::SYS_read => SystemCall::Transfer(side(0, TransferOffset::Position, false), bytes(2)),
        libc::SYS_write => SystemCall::Transfer(side(0, TransferOffset::Position, true), bytes(2)),
        libc::SYS_pread64 => SystemCall::Transfer(side(0, TransferOffset::At(a[3]), false), bytes(2)),
        libc::SYS_pwrite64 => SystemCall::Transfer(side(0, TransferOffset::At(a[3]), true), bytes(2)),
        libc::SYS_readv => SystemCall::Transfer(side(0, TransferOffset::Position, false), vector),
        libc::SYS_writev => SystemCall::Transfer(side(0, TransferOffset::Position, true), vector),
        libc::SYS_preadv => SystemCall::Transfer(side(0, TransferOffset::At(a[3]), false), vector),
        libc::SYS_pwritev => SystemCall::Transfer(side(0, TransferOffset::At(a[3]), true), vector),
        libc::SYS_preadv2 => SystemCall::Transfer(side(0, at_or_position(a[3]), false), vector),
        libc::SYS_pwritev2 => SystemCall::Transfer(side(0, at_or_position(a[3]), true), vector),
        libc::SYS_copy_file_range | libc::SYS_splice => SystemCall::Copy(
            side(0, TransferOffset::Pointer(a[1]), false),
            side(2, TransferOffset::Pointer(a[3]), true),
            a[4].min(CALL_BYTES_MAX),
        ),
        libc::SYS_sendfile => SystemCall::Copy(
            side(1, TransferOffset::Pointer(a[2]), false),
            side(0, TransferOffset::Position, true),
            a[3].min(CALL_BYTES_MAX),
        ),
        libc::SYS_mmap => SystemCall::Map {
            fd: fd(4),
            bytes: a[1],
            offset: a[5],
            is_executable: a[2] as i32 & libc::PROT_EXEC != 0,
            is_written: a[2] as i32 & libc::PROT_WRITE != 0 && a[3] as i32 & libc::MAP_TYPE != libc::MAP_PRIVATE,
        },
        libc::SYS_execve | libc::SYS_execveat => SystemCall::Exec,
        libc::SYS_io_uring_setup => SystemCall::IoUring,
        libc::SYS_io_submit => SystemCall::IoSubmit,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_match_manual_pages() {
        let machine = MACHINE.unwrap();
        let decoded = |number: i64, arguments: [u64; 6]| decode(machine, number as i32, &arguments);
        let read = |fd, offset| TransferSide { fd, offset, is_write: false };
        let write = |fd, offset| TransferSide { fd, offset, is_write: true };
        let expected = SystemCall::Transfer(read(3, TransferOffset::Position), TransferLength::Bytes(10));
        assert_eq!(decoded(libc::SYS_read, [3, 1, 10, 9, 9, 9]), Some(expected));
        let expected = SystemCall::Transfer(write(3, TransferOffset::At(77)), TransferLength::Bytes(CALL_BYTES_MAX));
        assert_eq!(decoded(libc::SYS_pwrite64, [3, 1, u64::MAX, 77, 9, 9]), Some(expected));
        let expected =
            SystemCall::Transfer(read(3, TransferOffset::Position), TransferLength::Vector { address: 1, count: 2 });
        assert_eq!(decoded(libc::SYS_preadv2, [3, 1, 2, u64::MAX, 9, 9]), Some(expected));
        let expected = SystemCall::Copy(read(4, TransferOffset::Pointer(5)), write(3, TransferOffset::Position), 6);
        assert_eq!(decoded(libc::SYS_sendfile, [3, 4, 5, 6, 9, 9]), Some(expected));
        let expected = SystemCall::Copy(read(3, TransferOffset::Pointer(4)), write(5, TransferOffset::Pointer(6)), 7);
        assert_eq!(decoded(libc::SYS_copy_file_range, [3, 4, 5, 6, 7, 9]), Some(expected));
        let shared = SystemCall::Map { fd: -1, bytes: 2, offset: 6, is_executable: false, is_written: true };
        let flags = libc::MAP_SHARED as u64;
        assert_eq!(decoded(libc::SYS_mmap, [1, 2, 3, flags, u64::MAX, 6]), Some(shared));
        assert_eq!(decoded(libc::SYS_execveat, [0; 6]), Some(SystemCall::Exec));
        assert_eq!(decoded(libc::SYS_getpid, [0; 6]), None);
        assert_eq!(decode(MACHINE_32.0, 3, &[0; 6]), Some(SystemCall::Call32));
        assert_eq!(decode(machine, 3 | X32_BIT as i32, &[0; 6]), Some(SystemCall::Call32));
    }
}
