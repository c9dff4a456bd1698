//! Encoding of messages: with one allocation, or without copying long values.

use bytes::buf::UninitSlice;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use std::collections::VecDeque;
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic_prost::ProstDecoder;

/// Prost's codec, with the buffer of a message allocated at once. A buffer that grows while values
/// are appended copies them each time it doubles.
#[derive(Debug)]
pub struct SizedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SizedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for SizedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = SizedEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> SizedEncoder<T> {
        SizedEncoder(PhantomData)
    }

    fn decoder(&mut self) -> ProstDecoder<U> {
        ProstDecoder::default()
    }
}

/// Encoder of [`SizedCodec`].
#[derive(Debug)]
pub struct SizedEncoder<T>(PhantomData<T>);

impl<T: Message> Encoder for SizedEncoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, message: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(message.encoded_len());
        message.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }
}

/// Minimum bytes of a value that is not copied. A shorter one is cheaper to copy than to send
/// separately.
pub const SHARED_BYTES_MIN: usize = 32 << 10;
/// Allocation size for copied bytes, which are not copied again as the message grows. Equal to the
/// length of the HTTP/2 frames that Stele's client accepts.
const PIECE_BYTES: usize = 60 << 10;
/// Bytes of gRPC's header before each message: a compression flag and the length.
const HEADER_BYTES: usize = 5;

/// Encoded messages in pieces, to be sent in order. A long [`Bytes`] of a message becomes a piece
/// that shares its memory.
#[derive(Debug, Default)]
pub struct Pieces {
    whole: VecDeque<Bytes>,
    whole_bytes: usize,
    last: BytesMut,
}

impl Pieces {
    /// Appends a message with gRPC's header. Fails if its length exceeds the header's 32 bits.
    pub fn message(&mut self, message: &impl Message) -> Result<(), Box<Status>> {
        let bytes = message.encoded_len();
        let Ok(length) = u32::try_from(bytes) else {
            let text = format!("a response of {bytes} bytes is too long: request fewer pairs");
            return Err(Box::new(Status::resource_exhausted(text)));
        };
        if self.last.capacity() - self.last.len() < HEADER_BYTES {
            self.cut();
            self.last.reserve((bytes + HEADER_BYTES).min(PIECE_BYTES));
        }
        self.put_u8(0);
        self.put_u32(length);
        message.encode_raw(self);
        Ok(())
    }

    /// Returns the bytes appended and not yet taken.
    pub fn bytes(&self) -> usize {
        self.whole_bytes + self.last.len()
    }

    /// Removes and returns the next piece to send.
    pub fn take(&mut self) -> Option<Bytes> {
        if self.whole.is_empty() {
            self.cut();
        }
        let piece = self.whole.pop_front()?;
        self.whole_bytes -= piece.len();
        Some(piece)
    }

    fn cut(&mut self) {
        let piece = self.last.split().freeze();
        self.push(piece);
    }

    fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.whole_bytes += piece.len();
            self.whole.push_back(piece);
        }
    }
}

// SAFETY: the memory returned is that of `last`, which grows by what its writer reports as written.
unsafe impl BufMut for Pieces {
    fn remaining_mut(&self) -> usize {
        usize::MAX - self.bytes()
    }

    unsafe fn advance_mut(&mut self, bytes: usize) {
        // SAFETY: the caller has written so many bytes of the memory that `last` returned.
        unsafe { self.last.advance_mut(bytes) }
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        if self.last.len() == self.last.capacity() {
            self.cut();
            self.last.reserve(PIECE_BYTES);
        }
        self.last.chunk_mut()
    }

    fn put<T: Buf>(&mut self, mut source: T) {
        if source.remaining() >= SHARED_BYTES_MIN {
            self.cut();
            let bytes = source.remaining();
            // For a `Bytes` this returns another handle of the same memory.
            let shared = source.copy_to_bytes(bytes);
            return self.push(shared);
        }
        while source.has_remaining() {
            let bytes = source.chunk().len();
            self.put_slice(source.chunk());
            source.advance(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kvrpcpb::{KvPair, RawBatchGetResponse};

    fn answer(lengths: &[usize]) -> RawBatchGetResponse {
        let pair = |(at, length): (usize, &usize)| KvPair {
            key: Bytes::from(format!("key {at}")),
            value: Bytes::from(vec![at as u8; *length]),
            ..KvPair::default()
        };
        let pairs = lengths.iter().enumerate().map(pair).collect();
        RawBatchGetResponse { pairs, ..RawBatchGetResponse::default() }
    }

    fn framed(message: &RawBatchGetResponse) -> Vec<u8> {
        let bytes = message.encode_to_vec();
        [&[0], (bytes.len() as u32).to_be_bytes().as_slice(), &bytes].concat()
    }

    #[test]
    fn the_pieces_of_several_messages_are_their_bytes_in_order() {
        const L: usize = SHARED_BYTES_MIN;
        let messages: Vec<_> = [
            vec![],
            vec![0, 1, L - 1],
            vec![L, L + 1, 5, L],
            vec![1000; 200],
            vec![PIECE_BYTES, PIECE_BYTES - HEADER_BYTES, 3 * PIECE_BYTES],
            (0..300).map(|at| at * 97 % (2 * L)).collect(),
        ]
        .iter()
        .map(|lengths| answer(lengths))
        .collect();
        for taken_between in [false, true] {
            let (mut pieces, mut sent, mut wanted) = (Pieces::default(), Vec::new(), Vec::new());
            for message in &messages {
                wanted.extend(framed(message));
                pieces.message(message).unwrap();
                assert_eq!(sent.len() + pieces.bytes(), wanted.len());
                if taken_between {
                    sent.extend_from_slice(&pieces.take().unwrap());
                }
            }
            while let Some(piece) = pieces.take() {
                assert!(!piece.is_empty());
                sent.extend_from_slice(&piece);
            }
            assert!(sent == wanted, "taken between: {taken_between}");
            assert_eq!(pieces.bytes(), 0);
        }
    }

    #[test]
    fn a_long_value_is_not_copied_and_a_short_one_is_no_piece_of_its_own() {
        let message = answer(&[100, SHARED_BYTES_MIN, 100, 100]);
        let mut pieces = Pieces::default();
        pieces.message(&message).unwrap();
        let all: Vec<Bytes> = std::iter::from_fn(|| pieces.take()).collect();
        assert_eq!(all.len(), 3);
        assert_eq!(all[1].as_ptr(), message.pairs[1].value.as_ptr());
    }
}
