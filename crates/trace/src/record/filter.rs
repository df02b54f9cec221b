//! The seccomp filter, which decides which calls wait for the recorder's answer before they continue.
//!
//! Owns: the BPF program. Promises: the filter never refuses a call. All calls except those of [`super::calls`]
//! continue at once, without a cost if the kernel caches the filter's answers (5.11 and later).
#![forbid(unsafe_code)]

use libc::sock_filter;

use super::calls::{MACHINE_32, OTHERS, READS, WRITES, X32_BIT};

/// Offsets in the data that a filter sees: the number of the call, and the number of the architecture.
const NUMBER: u32 = 0;
const MACHINE: u32 = 4;
/// The offset of the low half of the fourth argument, which has the flags of mmap.
const FLAGS: u32 = 16 + 3 * 8;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Builds the filter for this machine. With `is_reads_only`, calls that only write do not wait for the recorder.
pub(super) fn build(machine: u32, is_reads_only: bool) -> Vec<sock_filter> {
    let mut asked: Vec<u32> = Vec::new();
    for calls in [READS, if is_reads_only { &[] } else { WRITES }, OTHERS] {
        asked.extend(calls.iter().map(|&call| call as u32));
    }
    let instruction = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let (ask, allow) =
        (instruction(RETURN, 0, 0, libc::SECCOMP_RET_USER_NOTIF), instruction(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    // Makes the call wait for the recorder if the accumulator matches `k`. Each check is followed by its own answer, so
    // jumps skip only one instruction.
    let ask_if = |program: &mut Vec<sock_filter>, code: u16, k: u32| {
        program.extend([instruction(code, 0, 1, k), ask]);
    };

    let mut own = vec![instruction(LOAD, 0, 0, NUMBER)];
    for &call in &asked {
        ask_if(&mut own, EQUAL, call);
        if cfg!(target_arch = "x86_64") {
            ask_if(&mut own, EQUAL, call | X32_BIT);
        }
    }
    own.extend([
        instruction(EQUAL, 1, 0, libc::SYS_mmap as u32),
        allow,
        instruction(LOAD, 0, 0, FLAGS),
        instruction(ANY_BIT, 0, 1, libc::MAP_ANONYMOUS as u32),
        allow,
        ask,
    ]);

    let mut program = vec![
        instruction(LOAD, 0, 0, MACHINE),
        instruction(EQUAL, 0, 1, machine),
        instruction((libc::BPF_JMP | libc::BPF_JA) as u16, 0, 0, 0),
    ];
    let jump_to_own = program.len() - 1;
    program.extend([instruction(EQUAL, 1, 0, MACHINE_32.0), allow, instruction(LOAD, 0, 0, NUMBER)]);
    for &call in MACHINE_32.1 {
        ask_if(&mut program, EQUAL, call);
    }
    program.push(allow);
    program[jump_to_own].k = (program.len() - jump_to_own - 1) as u32;
    program.extend(own);
    program
}

#[cfg(test)]
mod tests {
    use super::super::calls;
    use super::*;

    /// The answer of the filter to a call, as the kernel computes it.
    fn answer(program: &[sock_filter], machine: u32, number: u32, flags: u32) -> u32 {
        let (mut accumulator, mut at) = (0, 0);
        loop {
            let instruction = program[at];
            at += 1;
            let k = instruction.k;
            match instruction.code {
                LOAD => {
                    accumulator =
                        [(NUMBER, number), (MACHINE, machine), (FLAGS, flags)].iter().find(|f| f.0 == k).unwrap().1
                }
                EQUAL => at += usize::from(if accumulator == k { instruction.jt } else { instruction.jf }),
                ANY_BIT => at += usize::from(if accumulator & k != 0 { instruction.jt } else { instruction.jf }),
                RETURN => return k,
                _ => at += k as usize,
            }
        }
    }

    #[test]
    fn filter_traps_exactly_listed_calls() {
        let machine = calls::MACHINE.unwrap();
        for is_reads_only in [false, true] {
            let program = build(machine, is_reads_only);
            assert!(program.len() < 4096, "BPF_MAXINSNS");
            for number in 0..600 {
                let is_asked = answer(&program, machine, number, 0) == libc::SECCOMP_RET_USER_NOTIF;
                let is_known = calls::decode(machine, number as i32, &[0; 6]).is_some();
                let is_write = WRITES.contains(&i64::from(number));
                assert_eq!(is_asked, is_known && !(is_reads_only && is_write), "call {number}");
                let is_asked = answer(&program, MACHINE_32.0, number, 0) == libc::SECCOMP_RET_USER_NOTIF;
                assert_eq!(is_asked, MACHINE_32.1.contains(&number), "32-bit call {number}");
            }
            let mmap = libc::SYS_mmap as u32;
            assert_eq!(answer(&program, machine, mmap, libc::MAP_ANONYMOUS as u32), libc::SECCOMP_RET_ALLOW);
            assert_eq!(answer(&program, 1234, libc::SYS_read as u32, 0), libc::SECCOMP_RET_ALLOW);
            if cfg!(target_arch = "x86_64") {
                assert_eq!(answer(&program, machine, X32_BIT, 0), libc::SECCOMP_RET_USER_NOTIF);
            }
        }
    }
}
