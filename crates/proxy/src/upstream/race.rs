//! Attempts that are raced: the next one begins when the last one has failed or has taken too long.
//!
//! Owns: the order of starts, and the end of the race. Used for the addresses of an origin and for the servers of names.
//! Leaves to others: the order of the candidates, and what is remembered about them (`addresses`). *Source*: RFC 8305,
//! 5.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

/// Starts an attempt for each candidate in order, and returns the first result with its candidate's index. An attempt
/// starts when `delay` has passed since the start of the last one, unless `is_promising` says then that one will soon
/// succeed, and at once when any attempt has failed. Attempts that go on when one has succeeded are dropped.
///
/// *Errors*: the last error if all attempts failed; `None` without candidates. *Cancel safety*: dropping the race drops
/// all attempts.
pub(super) async fn race<C, T, E, F>(
    candidates: impl IntoIterator<Item = C>,
    delay: Duration,
    is_promising: impl Fn() -> bool,
    mut attempt: impl FnMut(C) -> F,
) -> Result<(usize, T), Option<E>>
where
    F: Future<Output = Result<T, E>>,
{
    let mut waiting = candidates.into_iter().enumerate().peekable();
    let mut running = FuturesUnordered::new();
    let mut last = None;
    loop {
        if let Some((index, candidate)) = waiting.next() {
            let work = attempt(candidate);
            running.push(async move { (index, work.await) });
        } else if running.is_empty() {
            return Err(last);
        }
        let mut pause = pin!(tokio::time::sleep(delay));
        loop {
            tokio::select! {
                Some((index, result)) = running.next() => match result {
                    Ok(won) => return Ok((index, won)),
                    Err(error) => {
                        last = Some(error);
                        break;
                    }
                },
                () = &mut pause, if waiting.peek().is_some() => {
                    if !is_promising() {
                        break;
                    }
                    pause.set(tokio::time::sleep(delay));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tokio::time::{Instant, sleep};

    use super::*;

    const DELAY: Duration = Duration::from_millis(250);

    /// Races candidates that take a time in milliseconds and then succeed or fail. Returns the result, the time of the
    /// race, and the times at which attempts started.
    async fn run(candidates: &[(u64, bool)]) -> (Result<(usize, u64), Option<u64>>, u64, Vec<u64>) {
        run_promising(candidates, Duration::ZERO).await
    }

    /// Like [`run`], with attempts that are promising for a time.
    async fn run_promising(
        candidates: &[(u64, bool)],
        promising: Duration,
    ) -> (Result<(usize, u64), Option<u64>>, u64, Vec<u64>) {
        let begin = Instant::now();
        let starts = RefCell::new(Vec::new());
        let result = race(
            candidates,
            DELAY,
            || begin.elapsed() < promising,
            |&(takes_ms, is_good)| {
                starts.borrow_mut().push(begin.elapsed().as_millis() as u64);
                async move {
                    sleep(Duration::from_millis(takes_ms)).await;
                    if is_good { Ok(takes_ms) } else { Err(takes_ms) }
                }
            },
        )
        .await;
        (result, begin.elapsed().as_millis() as u64, starts.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_candidate_costs_one_delay() {
        let day = 86_400_000;
        assert_eq!(run(&[(10, true), (10, true)]).await, (Ok((0, 10)), 10, vec![0]));
        assert_eq!(run(&[(day, true), (10, true)]).await, (Ok((1, 10)), 260, vec![0, 250]));
        assert_eq!(run(&[(day, true), (day, true), (10, true)]).await, (Ok((2, 10)), 510, vec![0, 250, 500]));
        assert_eq!(run(&[(300, true), (500, true)]).await, (Ok((0, 300)), 300, vec![0, 250]), "the first goes on");
        let second = Duration::from_secs(1);
        assert_eq!(run_promising(&[(400, true), (10, true)], second).await, (Ok((0, 400)), 400, vec![0]));
        assert_eq!(run_promising(&[(day, true), (10, true)], second).await, (Ok((1, 10)), 1010, vec![0, 1000]));
        assert_eq!(run_promising(&[(400, false), (10, true)], second).await, (Ok((1, 10)), 410, vec![0, 400]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_candidate_costs_no_delay() {
        assert_eq!(run(&[(5, false), (6, false), (7, true)]).await, (Ok((2, 7)), 18, vec![0, 5, 11]));
        assert_eq!(run(&[(5, false), (700, false)]).await, (Err(Some(700)), 705, vec![0, 5]));
        assert_eq!(run(&[]).await, (Err(None), 0, vec![]));
    }
}
