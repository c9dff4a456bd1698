//! Start of calls: writes join the group commit, reads wait for a reading thread.

use super::{Answer, QueueOptions, Ticket};
use crate::db::Db;
use crate::db::queued_reads::{QueuedRead, Wanted};
use bytes::Bytes;
use stele_types::{CommandBuilder, Error, Result, checksum, command};

#[derive(Clone, Copy, Debug)]
pub(super) enum Call<'a> {
    Get { key: &'a [u8] },
    Exist { key: &'a [u8] },
    Put { key: &'a [u8], value: &'a [u8] },
    Delete { key: &'a [u8] },
}

impl<'a> Call<'a> {
    pub(super) fn key(&self) -> &'a [u8] {
        match self {
            Self::Get { key } | Self::Exist { key } | Self::Delete { key } => key,
            Self::Put { key, .. } => key,
        }
    }

    /// Checks the limits of the store and the bounds of the queue.
    pub(super) fn check(&self, options: &QueueOptions) -> Result<()> {
        let bound = |name: &str, bytes: usize, most: usize| {
            if bytes <= most {
                return Ok(());
            }
            Err(Error::invalid(format!(
                "the {name} has {bytes} bytes and the queue takes at most {most}; \
                 create the queue with a larger `{name}_bytes_max`"
            )))
        };
        bound("key", self.key().len(), options.key_bytes_max)?;
        match self {
            Self::Put { key, value } => {
                bound("value", value.len(), options.value_bytes_max)?;
                command::check_user_pair(key, value)
            }
            _ => command::check_user_key(self.key()),
        }
    }

    /// Returns the bytes that the call counts while it is in flight: of a get those of the longest
    /// value, because its length is not known.
    pub(super) fn reserved_bytes(&self, options: &QueueOptions) -> usize {
        self.key().len()
            + match self {
                Self::Get { .. } => options.value_bytes_max,
                Self::Put { value, .. } => value.len(),
                Self::Exist { .. } | Self::Delete { .. } => 0,
            }
    }
}

impl Db {
    /// Starts a checked call. On an error the call was not accepted.
    pub(super) fn start_call(&self, ticket: Ticket, call: Call<'_>) -> Result<()> {
        match call {
            Call::Get { key } => self.start_read(ticket, key, Wanted::Value),
            Call::Exist { key } => self.start_read(ticket, key, Wanted::Existence),
            Call::Put { key, value } => {
                let crc = checksum::crc32c(value);
                self.start_write(ticket, key.len() + value.len(), |builder| {
                    builder.put_with_crc(key, value, crc, 0).map(|_| ())
                })
            }
            Call::Delete { key } => {
                self.start_write(ticket, key.len(), |builder| builder.delete(key).map(|_| ()))
            }
        }
    }

    fn start_read(&self, ticket: Ticket, key: &[u8], wanted: Wanted) -> Result<()> {
        let read = QueuedRead { ticket, key: Bytes::copy_from_slice(key), wanted };
        match &self.workers {
            Some(workers) => workers.reads().submit(read),
            // Without threads the caller reads.
            None => self.reader.answer(vec![read]),
        }
        Ok(())
    }

    fn start_write(
        &self,
        ticket: Ticket,
        bytes: usize,
        add: impl FnOnce(&mut CommandBuilder) -> Result<()>,
    ) -> Result<()> {
        let mut ticket = Some(ticket);
        let submitted = self.pipeline.submit_then(bytes, add, || {
            let ticket = ticket.take()?;
            Some(Box::new(move |result: Result<()>| {
                ticket.complete(result.map(|()| Answer::Written));
            }))
        });
        match submitted {
            Ok(completion) if self.workers.is_none() => {
                // Without threads the caller commits. The result is in the queue.
                let _ = completion.wait();
                Ok(())
            }
            Ok(_) => {
                self.commit_soon();
                Ok(())
            }
            Err(error) => {
                if let Some(ticket) = ticket {
                    ticket.withdraw();
                }
                Err(error)
            }
        }
    }
}
