//! Range locks, which order the I/O on a block.
//!
//! Owns: the queue of tickets. A ticket is granted when no earlier ticket that still exists shares a block with it. So
//! the tickets of a block are granted in the order in which they were drawn, and no task starves. Promises: tasks that
//! hold one ticket at a time cannot deadlock.

use std::collections::BTreeMap;
use std::ops::Range;

use tokio::sync::oneshot;

/// The existing tickets, by number.
#[derive(Default)]
pub(crate) struct RangeLocks {
    next: u64,
    tickets: BTreeMap<u64, BlockWaiter>,
}

struct BlockWaiter {
    /// The ids of the blocks; an id includes the file.
    blocks: Range<u64>,
    /// The sender that grants the ticket; `None` once the ticket is granted.
    grant: Option<oneshot::Sender<()>>,
}

impl RangeLocks {
    /// Draws a ticket for a range. *Returns* the ticket's number, and a receiver that reports when the ticket is
    /// granted.
    pub fn draw(&mut self, blocks: Range<u64>) -> (u64, oneshot::Receiver<()>) {
        let (grant, granted) = oneshot::channel();
        let number = self.next;
        self.next += 1;
        let mut grant = Some(grant);
        if self.is_free(number, &blocks) {
            let _ = grant.take().map(|grant| grant.send(()));
        }
        self.tickets.insert(number, BlockWaiter { blocks, grant });
        (number, granted)
    }

    /// Returns a ticket, granted or not, and grants the tickets that waited for it.
    pub fn release(&mut self, number: u64) {
        let Some(released) = self.tickets.remove(&number) else { return };
        let later = self.tickets.range(number..);
        let freed: Vec<u64> = later
            .filter(|(_, waiting)| waiting.grant.is_some() && overlaps(&waiting.blocks, &released.blocks))
            .filter(|(number, waiting)| self.is_free(**number, &waiting.blocks))
            .map(|(&number, _)| number)
            .collect();
        for number in freed {
            let grant = self.tickets.get_mut(&number).and_then(|waiting| waiting.grant.take());
            // Sending fails if the task that drew the ticket was dropped. The drop of the task releases the ticket.
            let _ = grant.map(|grant| grant.send(()));
        }
    }

    fn is_free(&self, number: u64, blocks: &Range<u64>) -> bool {
        !self.tickets.range(..number).any(|(_, earlier)| overlaps(&earlier.blocks, blocks))
    }
}

fn overlaps(left: &Range<u64>, right: &Range<u64>) -> bool {
    left.start < right.end && right.start < left.end
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tickets of a block are granted in order, and tickets of other blocks at once.
    #[test]
    fn block_tickets_granted_in_order() {
        let mut locks = RangeLocks::default();
        let (first, mut first_granted) = locks.draw(0..10);
        let (second, mut second_granted) = locks.draw(5..20);
        let (third, mut third_granted) = locks.draw(15..16);
        let (_, mut apart_granted) = locks.draw(30..31);
        assert!(first_granted.try_recv().is_ok() && apart_granted.try_recv().is_ok());
        assert!(second_granted.try_recv().is_err() && third_granted.try_recv().is_err());
        locks.release(first);
        assert!(second_granted.try_recv().is_ok() && third_granted.try_recv().is_err(), "the third waits its turn");
        locks.release(second);
        assert!(third_granted.try_recv().is_ok());
        locks.release(third);
    }

    #[test]
    fn dropped_ticket_grants_next() {
        let mut locks = RangeLocks::default();
        let (first, _granted) = locks.draw(0..1);
        let (second, second_granted) = locks.draw(0..1);
        let (_, mut third_granted) = locks.draw(0..1);
        drop(second_granted);
        locks.release(second);
        assert!(third_granted.try_recv().is_err());
        locks.release(first);
        assert!(third_granted.try_recv().is_ok());
    }
}
