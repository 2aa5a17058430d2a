//! Large objects: Arrow IPC files, one row per chunk in record batches of bounded size, so that they stream in bounded memory and pyarrow, DuckDB or polars
//! can read them.
//!
//! | column | type | meaning |
//! |---|---|---|
//! | `section` | utf8 | what the chunk belongs to, such as `parameters` or `state.0` |
//! | `tensor` | uint32 | index of the tensor within the object |
//! | `offset` | uint64 | first element of the chunk within the tensor |
//! | `elements` | uint32 | values in the chunk |
//! | `values` | list&lt;float32&gt; | the values (fragments, states, checkpoints), or |
//! | `bytes` | binary | the values as the codec encoded them (offers) |
//!
//! The schema's metadata holds one JSON header under `tombolo`. The content hash is SHA-256 over the chunks (section,
//! tensor, offset, elements, data) and does not depend on how Arrow frames them.

use super::frame;
use super::spool::{Flat, Spool};
use crate::error::{Error, Result};
use arrow::array::{
    ArrayRef, BinaryArray, Float32Array, ListArray, RecordBatch, StringArray, UInt32Array, UInt64Array,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Schema};
use arrow::ipc::MetadataVersion;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions};
use futures::StreamExt;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore, ObjectStoreExt, WriteMultipart};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Arc;

/// Objects up to this size are put in one request; larger ones as multipart uploads of parts of this size.
const PART_BYTES: usize = 8 << 20;
/// A record batch is full with this much data: enough that its framing is next to nothing, little enough for any reader's memory.
const BATCH_BYTES: usize = 256 << 10;

/// What a chunk carries.
#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    /// Plain values.
    Values(Vec<f32>),
    /// Values as a codec encoded them.
    Encoded(Vec<u8>),
}

/// One chunk of one tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Chunk {
    /// What it belongs to.
    pub section: String,
    /// Index of the tensor.
    pub tensor: u32,
    /// First element within the tensor.
    pub offset: u64,
    /// Values.
    pub elements: u32,
    /// The values.
    pub data: Data,
}

impl Chunk {
    /// Bytes of its data.
    fn bytes(&self) -> usize {
        match &self.data {
            Data::Values(values) => 4 * values.len(),
            Data::Encoded(bytes) => bytes.len(),
        }
    }
}

/// Adds chunks to a content hash.
#[derive(Clone, Default)]
pub struct ContentHash(Sha256);

impl ContentHash {
    /// Adds one chunk.
    pub fn add(&mut self, chunk: &Chunk) {
        self.0.update((chunk.section.len() as u32).to_le_bytes());
        self.0.update(chunk.section.as_bytes());
        self.0.update(chunk.tensor.to_le_bytes());
        self.0.update(chunk.offset.to_le_bytes());
        self.0.update(chunk.elements.to_le_bytes());
        match &chunk.data {
            Data::Values(values) => {
                for block in values.chunks(1024) {
                    let bytes: Vec<u8> = block.iter().flat_map(|v| v.to_le_bytes()).collect();
                    self.0.update(&bytes);
                }
            }
            Data::Encoded(bytes) => {
                self.0.update((bytes.len() as u64).to_le_bytes());
                self.0.update(bytes);
            }
        }
    }

    /// The hash as 64 hexadecimal digits.
    pub fn finish(self) -> String {
        crate::nonce::hex(&self.0.finalize())
    }
}

/// The content hash of `chunks`.
pub fn content_hash(chunks: &[Chunk]) -> String {
    let mut hash = ContentHash::default();
    chunks.iter().for_each(|c| hash.add(c));
    hash.finish()
}

fn schema(encoded: bool, header: String) -> Arc<Schema> {
    let data = if encoded {
        Field::new("bytes", DataType::Binary, false)
    } else {
        Field::new("values", DataType::List(Arc::new(Field::new("item", DataType::Float32, false))), false)
    };
    let fields = vec![
        Field::new("section", DataType::Utf8, false),
        Field::new("tensor", DataType::UInt32, false),
        Field::new("offset", DataType::UInt64, false),
        Field::new("elements", DataType::UInt32, false),
        data,
    ];
    Arc::new(Schema::new_with_metadata(fields, HashMap::from([("tombolo".to_string(), header)])))
}

/// The record batch of these chunks, which are all encoded or all not.
fn batch(schema: &Arc<Schema>, encoded: bool, chunks: &[Chunk]) -> Result<RecordBatch> {
    let bytes = chunks.iter().filter_map(|chunk| match &chunk.data {
        Data::Encoded(bytes) => Some(bytes.as_slice()),
        Data::Values(_) => None,
    });
    let values = chunks.iter().filter_map(|chunk| match &chunk.data {
        Data::Values(values) => Some(values.as_slice()),
        Data::Encoded(_) => None,
    });
    let data: ArrayRef = if encoded {
        Arc::new(BinaryArray::from_iter_values(bytes))
    } else {
        let offsets = OffsetBuffer::from_lengths(values.clone().map(<[f32]>::len));
        let item = Arc::new(Field::new("item", DataType::Float32, false));
        let values = Float32Array::from_iter_values(values.flatten().copied());
        Arc::new(ListArray::new(item, offsets, Arc::new(values), None))
    };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(chunks.iter().map(|chunk| &chunk.section))),
        Arc::new(UInt32Array::from_iter_values(chunks.iter().map(|chunk| chunk.tensor))),
        Arc::new(UInt64Array::from_iter_values(chunks.iter().map(|chunk| chunk.offset))),
        Arc::new(UInt32Array::from_iter_values(chunks.iter().map(|chunk| chunk.elements))),
        data,
    ];
    RecordBatch::try_new(schema.clone(), columns)
        .map_err(|e| Error::bug("a chunk does not fit its own schema").because(e))
}

/// Writes an object: `header` and `chunks`, in order, under `key`. Small objects are one put; large ones a multipart upload whose parts are
/// the only copy in memory. Keys of payloads are unique to their content or their writer, so no condition is needed.
///
/// # Errors
/// Unavailable, naming the key, and whatever the chunks fail with. A failed upload leaves no object.
pub async fn write<H: Serialize>(
    store: &dyn ObjectStore,
    key: &Path,
    header: &H,
    encoded: bool,
    mut chunks: impl Iterator<Item = Result<Chunk>>,
) -> Result<u64> {
    let ipc = |e| Error::bug(format!("{key}: writing Arrow IPC to memory failed")).because(e);
    let unavailable = |e: StoreError| Error::unavailable(format!("{key}: cannot be written")).because(e);
    let header = serde_json::to_string(header).map_err(|e| Error::bug("a header does not serialise").because(e))?;
    let schema = schema(encoded, header);
    // The least that Arrow allows: no chunk is large enough for more to pay.
    let options = IpcWriteOptions::try_new(8, false, MetadataVersion::V5).map_err(ipc)?;
    let mut writer = FileWriter::try_new_with_options(Vec::new(), &schema, options).map_err(ipc)?;
    let mut upload: Option<WriteMultipart> = None;
    let mut written = 0u64;
    let (mut pending, mut pending_bytes, mut ended) = (Vec::new(), 0, false);
    while !ended {
        match chunks.next().transpose()? {
            Some(chunk) => {
                pending_bytes += chunk.bytes();
                pending.push(chunk);
            }
            None => ended = true,
        }
        if pending_bytes < BATCH_BYTES && !ended || pending.is_empty() {
            continue;
        }
        writer.write(&batch(&schema, encoded, &std::mem::take(&mut pending))?).map_err(ipc)?;
        pending_bytes = 0;
        if writer.get_ref().len() >= PART_BYTES {
            let part = std::mem::take(writer.get_mut());
            written += part.len() as u64;
            let open = match upload.take() {
                Some(open) => open,
                None => WriteMultipart::new_with_chunk_size(
                    store.put_multipart(key).await.map_err(unavailable)?,
                    PART_BYTES,
                ),
            };
            let mut open = open;
            open.wait_for_capacity(2).await.map_err(unavailable)?;
            open.put(part.into());
            upload = Some(open);
        }
    }
    writer.finish().map_err(ipc)?;
    let rest = writer.into_inner().map_err(ipc)?;
    written += rest.len() as u64;
    match upload {
        Some(mut open) => {
            open.put(rest.into());
            open.finish().await.map_err(unavailable)?;
        }
        None => {
            store.put(key, rest.into()).await.map_err(unavailable)?;
        }
    }
    Ok(written)
}

/// An object as it was read: its header and its chunks in order.
#[derive(Debug, Clone)]
pub struct Object<H> {
    /// The header.
    pub header: H,
    /// The chunks.
    pub chunks: Vec<Chunk>,
}

/// An object that was fetched: its header, and its chunks where they can be read one by one, as often as needed, always the same bytes.
#[derive(Debug)]
pub struct Stored<H> {
    /// The header.
    pub header: H,
    name: String,
    contents: frame::Contents,
    spool: Spool,
}

impl<H> Stored<H> {
    /// Its chunks, in order.
    ///
    /// # Errors
    /// Each may be corrupt, or unavailable where a temporary file cannot be read.
    pub fn chunks(&self) -> impl Iterator<Item = Result<Chunk>> + '_ {
        let batch = |i| {
            let corrupt = |problem| Error::corrupt(format!("{}: {problem}", self.name));
            let (start, length) = self.contents.place(i).map_err(corrupt)?;
            let bytes = self.spool.part(start, length)?.unwrap_or_default();
            self.contents.chunks(i, &bytes).map_err(corrupt)
        };
        (0..self.contents.batches()).flat_map(move |i| match batch(i) {
            Ok(chunks) => chunks.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        })
    }
}

/// Fetches the object under `key`, at most `bytes_max` bytes of it; beyond `memory_max` bytes into a temporary file.
///
/// # Errors
/// Unavailable if the store does not answer or the object is absent; corrupt if it is larger than `bytes_max`, not an Arrow IPC file of
/// this schema, or its header is not what is expected.
pub async fn fetch<H: DeserializeOwned>(
    store: &dyn ObjectStore,
    key: &Path,
    bytes_max: u64,
    memory_max: usize,
) -> Result<Stored<H>> {
    let unavailable = |e: StoreError| Error::unavailable(format!("{key}: cannot be read")).because(e);
    let found = store.get(key).await.map_err(unavailable)?;
    if found.meta.size > bytes_max {
        return Err(Error::corrupt(format!("{key}: expected at most {bytes_max} bytes, found {}", found.meta.size)));
    }
    let announced = found.meta.size;
    let mut spool = Spool::new(memory_max);
    let mut stream = found.into_stream();
    while let Some(part) = stream.next().await {
        let part = part.map_err(unavailable)?;
        if spool.bytes() + part.len() as u64 > bytes_max {
            return Err(Error::corrupt(format!(
                "{key}: expected at most {bytes_max} bytes, found more than the store had announced"
            )));
        }
        spool.push(&part)?;
    }
    // A body that was cut off on its way is no damaged object.
    if spool.bytes() != announced {
        return Err(Error::unavailable(format!("{key}: expected {announced} bytes, found {}", spool.bytes())));
    }
    open(key.as_ref(), spool)
}

/// Opens an object that `name` was read from.
///
/// # Errors
/// Corrupt, as [`fetch`].
fn open<H: DeserializeOwned>(name: &str, spool: Spool) -> Result<Stored<H>> {
    let corrupt = |problem| Error::corrupt(format!("{name}: {problem}"));
    let ends = spool.bytes().min(frame::TAIL_BYTES as u64);
    let first = spool.part(0, ends as usize)?.unwrap_or_default();
    let last = spool.part(spool.bytes() - ends, ends as usize)?.unwrap_or_default();
    let (start, length) = frame::footer(spool.bytes(), &first, &last).map_err(corrupt)?;
    let contents = frame::Contents::read(&spool.part(start, length)?.unwrap_or_default(), start).map_err(corrupt)?;
    let header = serde_json::from_str(&contents.header)
        .map_err(|e| Error::corrupt(format!("{name}: its header is not of the expected form")).because(e))?;
    Ok(Stored { header, name: name.to_string(), contents, spool })
}

/// Reads the object under `key` into memory, at most `bytes_max` bytes of it.
///
/// # Errors
/// As [`fetch`]; corrupt if a chunk is damaged.
pub async fn read<H: DeserializeOwned>(store: &dyn ObjectStore, key: &Path, bytes_max: u64) -> Result<Object<H>> {
    let stored = fetch(store, key, bytes_max, usize::MAX).await?;
    let chunks = stored.chunks().collect::<Result<Vec<Chunk>>>()?;
    Ok(Object { header: stored.header, chunks })
}

/// Cuts the values of one section into chunks: `lengths` are the elements of its tensors, one after another in `flat`.
///
/// # Errors
/// Each may be unavailable where the values lie in a temporary file.
pub fn cut<'a, F: Flat>(
    section: &'a str,
    lengths: &'a [usize],
    flat: &'a F,
    chunk_elements: usize,
) -> impl Iterator<Item = Result<Chunk>> + 'a {
    let mut start = 0usize;
    lengths.iter().enumerate().flat_map(move |(tensor, &length)| {
        let tensor_start = start;
        start += length;
        (0..length).step_by(chunk_elements).map(move |offset| {
            let mut values = vec![0.0; chunk_elements.min(length - offset)];
            flat.read(tensor_start + offset, &mut values)?;
            Ok(Chunk {
                section: section.to_string(),
                tensor: tensor as u32,
                offset: offset as u64,
                elements: values.len() as u32,
                data: Data::Values(values),
            })
        })
    })
}

/// Puts the chunks of one section together again, one after another.
pub struct Joiner<'a> {
    name: &'a str,
    section: String,
    lengths: &'a [usize],
    tensor: usize,
    offset: usize,
    joined: usize,
}

impl<'a> Joiner<'a> {
    /// For `section` of the object `name`, whose tensors have `lengths` elements.
    pub fn new(name: &'a str, section: impl Into<String>, lengths: &'a [usize]) -> Joiner<'a> {
        Joiner { name, section: section.into(), lengths, tensor: 0, offset: 0, joined: 0 }
    }

    /// The next chunk of the object: where its values begin in the flat vector, and they themselves; none if it is of another section.
    ///
    /// # Errors
    /// Corrupt: a chunk is missing, doubled, out of order or does not belong there.
    pub fn take<'c>(&mut self, chunk: &'c Chunk) -> Result<Option<(usize, &'c [f32])>> {
        let Joiner { name, section, lengths, tensor, offset, joined } = self;
        if chunk.section != *section {
            return Ok(None);
        }
        let Data::Values(values) = &chunk.data else {
            return Err(Error::corrupt(format!("{name}: section {section}: expected values, found encoded bytes")));
        };
        let fits = chunk.tensor as usize == *tensor
            && chunk.offset as usize == *offset
            && *tensor < lengths.len()
            && !values.is_empty()
            && *offset + values.len() <= lengths[*tensor];
        if !fits {
            return Err(Error::corrupt(format!(
                "{name}: section {section}: expected a chunk of tensor {tensor} at {offset}, found one of tensor {} at {} with {} values",
                chunk.tensor,
                chunk.offset,
                values.len()
            )));
        }
        let start = *joined;
        *joined += values.len();
        *offset += values.len();
        if *offset == lengths[*tensor] {
            (*tensor, *offset) = (*tensor + 1, 0);
        }
        Ok(Some((start, values)))
    }

    /// All chunks have been there.
    ///
    /// # Errors
    /// Corrupt: some are missing.
    pub fn finish(self) -> Result<()> {
        let Joiner { name, section, lengths, joined, .. } = self;
        let total: usize = lengths.iter().sum();
        if joined == total {
            return Ok(());
        }
        Err(Error::corrupt(format!("{name}: section {section}: expected {total} values, found {joined}")))
    }
}

/// Puts the chunks of `section` together again: a flat vector of the tensors of `lengths`.
///
/// # Errors
/// Corrupt, as [`Joiner`].
pub fn join(name: &str, section: &str, lengths: &[usize], chunks: &[Chunk]) -> Result<Vec<f32>> {
    let mut joiner = Joiner::new(name, section, lengths);
    let mut flat = Vec::with_capacity(lengths.iter().sum());
    for chunk in chunks {
        if let Some((_, values)) = joiner.take(chunk)? {
            flat.extend_from_slice(values);
        }
    }
    joiner.finish()?;
    Ok(flat)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use object_store::memory::InMemory;
    use proptest::prelude::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn what_was_written_is_read(lengths in prop::collection::vec(1usize..300, 1..5), chunk in 1usize..100) {
            let flat: Vec<f32> = (0..lengths.iter().sum::<usize>()).map(|i| i as f32 * 0.5 - 7.0).collect();
            let chunks: Vec<Chunk> = cut("parameters", &lengths, &flat, chunk).collect::<Result<_>>().unwrap();
            let store = InMemory::new();
            let key = Path::from("a/b.arrow");
            let object = runtime().block_on(async {
                write(&store, &key, &"head", false, chunks.clone().into_iter().map(Ok)).await.unwrap();
                read::<String>(&store, &key, 1 << 20).await.unwrap()
            });
            prop_assert_eq!(&object.header, "head");
            prop_assert_eq!(content_hash(&object.chunks), content_hash(&chunks));
            prop_assert_eq!(join("x", "parameters", &lengths, &object.chunks).unwrap(), flat);
        }

        #[test]
        fn damaged_bytes_are_an_error_and_never_a_crash(encoded: bool, cut_at in 0usize..4000, flips in prop::collection::vec((0usize..4000, 1u8..=255), 1..4)) {
            let data = if encoded { Data::Encoded(vec![1, 2, 3, 4, 5, 6]) } else { Data::Values(vec![1.0, -2.0, 0.5]) };
            let chunk = Chunk { section: "offer".into(), tensor: 0, offset: 0, elements: 3, data };
            let chunks = [chunk.clone(), Chunk { tensor: 1, ..chunk }];
            let body = bytes_of(&chunks, encoded);
            for memory_max in [0, usize::MAX] {
                prop_assert_eq!(&parse(&body, memory_max).unwrap().chunks, &chunks);
            }
            let truncated = body.slice(..cut_at % body.len());
            prop_assert!(parse(&truncated, usize::MAX).is_err());
            let mut flipped = body.to_vec();
            for (at, bits) in flips {
                let at = at % flipped.len();
                flipped[at] ^= bits;
            }
            // Damaged bytes are refused here or change the content hash; either way nobody merges them as what they were.
            if let Ok(object) = parse(&flipped, usize::MAX) {
                prop_assert_eq!(object.chunks == chunks, content_hash(&object.chunks) == content_hash(&chunks));
            }
        }
    }

    /// Parses what lies in memory or, beyond a few bytes, on disk.
    fn parse(body: &[u8], memory_max: usize) -> Result<Object<String>> {
        let mut spool = Spool::new(memory_max);
        spool.push(body)?;
        let stored = open("x", spool)?;
        let chunks = stored.chunks().collect::<Result<Vec<Chunk>>>()?;
        Ok(Object { header: stored.header, chunks })
    }

    fn bytes_of(chunks: &[Chunk], encoded: bool) -> Bytes {
        let store = InMemory::new();
        let key = Path::from("a/b.arrow");
        runtime().block_on(async {
            write(&store, &key, &"head", encoded, chunks.iter().cloned().map(Ok)).await.unwrap();
            store.get(&key).await.unwrap().bytes().await.unwrap()
        })
    }

    /// Arrow's own reader, and with it pyarrow and others, reads what is written here.
    #[test]
    fn the_file_is_one_of_arrow() {
        let chunk = Chunk {
            section: "parameters".into(),
            tensor: 2,
            offset: 7,
            elements: 2,
            data: Data::Values(vec![1.5, -2.0]),
        };
        let chunks = [chunk.clone(), Chunk { tensor: 3, elements: 1, data: Data::Values(vec![0.25]), ..chunk }];
        let reader =
            arrow::ipc::reader::FileReader::try_new(std::io::Cursor::new(bytes_of(&chunks, false)), None).unwrap();
        assert_eq!(reader.schema().metadata()["tombolo"], "\"head\"");
        let batches: Vec<RecordBatch> = reader.map(|batch| batch.unwrap()).collect();
        assert_eq!((batches.len(), batches[0].num_rows()), (1, 2), "small chunks share a batch");
        let shown = format!("{:?}", batches[0]);
        for value in ["parameters", "1.5", "-2.0", "0.25"] {
            assert!(shown.contains(value), "{shown}");
        }
    }

    #[test]
    fn a_large_object_goes_up_in_parts_and_comes_back_whole() {
        let lengths = [3_000_000usize, 1_500_000];
        let flat: Vec<f32> = (0..4_500_000).map(|i| i as f32).collect();
        let store = InMemory::new();
        let key = Path::from("big.arrow");
        let object = runtime().block_on(async {
            let bytes = write(&store, &key, &"h", false, cut("parameters", &lengths, &flat, 32768)).await.unwrap();
            assert!(bytes > 2 * PART_BYTES as u64);
            // Framing is next to nothing, whatever the number of chunks.
            assert!(bytes < 4 * flat.len() as u64 * 101 / 100, "{bytes}");
            read::<String>(&store, &key, 64 << 20).await.unwrap()
        });
        assert_eq!(join("x", "parameters", &lengths, &object.chunks).unwrap(), flat);
    }

    #[test]
    fn an_object_larger_than_allowed_is_refused_before_it_is_read() {
        let store = InMemory::new();
        let key = Path::from("a.arrow");
        let error = runtime().block_on(async {
            write(&store, &key, &"h", false, cut("parameters", &[1000], &vec![0.0; 1000], 100)).await.unwrap();
            read::<String>(&store, &key, 100).await.unwrap_err()
        });
        assert!(error.to_string().contains("at most 100 bytes"), "{error}");
    }

    /// A footer may name one batch again and again: read as it says, a small object would take any time and any memory.
    #[test]
    fn a_footer_whose_batches_overlap_or_lie_elsewhere_is_refused() {
        let chunk = |tensor| Chunk {
            section: "offer".into(),
            tensor,
            offset: 0,
            elements: 50_000,
            data: Data::Values(vec![tensor as f32; 50_000]),
        };
        let body = bytes_of(&[chunk(0), chunk(1), chunk(2)], false).to_vec();
        assert_eq!(parse(&body, usize::MAX).unwrap().chunks.len(), 3);
        // Blocks of the footer: offset (i64), length of the metadata (i32, then 4 bytes of padding), length of the body (i64).
        let length = |at: usize| i64::from_le_bytes(body[at..at + 8].try_into().unwrap());
        let is_block = |at: &usize| {
            let metadata = i32::from_le_bytes(body[at + 8..at + 12].try_into().unwrap());
            let body_bytes = 190_000..900_000;
            (0..1 << 20).contains(&length(*at))
                && (1..2_000).contains(&metadata)
                && body_bytes.contains(&length(at + 16))
        };
        let blocks: Vec<usize> = (body.len() - 2_000..body.len() - 24).filter(is_block).collect();
        assert!(blocks.len() >= 2, "{blocks:?}");
        let last = blocks[blocks.len() - 1];
        let refused = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut forged = body.clone();
            change(&mut forged);
            parse(&forged, usize::MAX).expect_err("forged").to_string()
        };
        let again = refused(&|forged| forged.copy_within(blocks[0]..blocks[0] + 24, blocks[1]));
        let shifted = refused(&|forged| {
            let inside = length(blocks[1]) - 8;
            forged[blocks[1]..blocks[1] + 8].copy_from_slice(&inside.to_le_bytes());
        });
        let beyond = refused(&|forged| {
            let end = body.len() as i64 - 1_000;
            forged[last..last + 8].copy_from_slice(&end.to_le_bytes());
        });
        for error in [again, shifted, beyond] {
            assert!(error.contains("one after another"), "{error}");
        }
    }
}
