//! What attention reads, counted on the host: it follows from positions.

use super::{IndexLayer, KvLayer};
use serde::Serialize;
use std::ops::AddAssign;

/// What the queries of attention layers have read; one query is one token in one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AttentionReads {
    /// Queries that attended to every token up to their own.
    pub full_queries: u64,
    /// Those of them in steps of dense attention: in layers without an indexer, or where no token
    /// of a chunk has anything to leave out.
    pub dense_queries: u64,
    /// Queries that left out blocks of tokens.
    pub sparse_queries: u64,
    /// Tokens attended to, the sum over queries.
    pub tokens: u64,
    /// Tokens attended to by the query that saw most.
    pub most_tokens: u32,
    /// Bytes of these tokens' keys and values, each query counted by itself.
    pub kv_bytes: u64,
    /// Bytes of pooled keys compared with queries, likewise.
    pub pooled_bytes: u64,
}

impl AttentionReads {
    /// Adds the queries of one layer at positions `first .. first + n`, of a step that was `dense`
    /// even if the layer has an index.
    pub(crate) fn add(
        &mut self,
        kv: &KvLayer,
        index: Option<&IndexLayer>,
        (first, n): (u32, u32),
        dense: bool,
    ) {
        let token = kv.bytes_per_token();
        if dense || index.is_none() {
            self.dense_queries += u64::from(n);
        }
        for position in first..first + n {
            let (attended, scanned) = match index.map(IndexLayer::shape) {
                Some(shape) => (shape.attended(position), shape.scanned(position)),
                None => (position + 1, 0),
            };
            *(if attended <= position {
                &mut self.sparse_queries
            } else {
                &mut self.full_queries
            }) += 1;
            self.tokens += u64::from(attended);
            self.most_tokens = self.most_tokens.max(attended);
            self.kv_bytes += u64::from(attended) * token;
            self.pooled_bytes += index.map_or(0, |index| index.bytes(scanned));
        }
    }

    /// What came after `before`, an earlier state of the same counter; of the largest query only
    /// that of both.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            full_queries: self.full_queries - before.full_queries,
            dense_queries: self.dense_queries - before.dense_queries,
            sparse_queries: self.sparse_queries - before.sparse_queries,
            tokens: self.tokens - before.tokens,
            most_tokens: self.most_tokens,
            kv_bytes: self.kv_bytes - before.kv_bytes,
            pooled_bytes: self.pooled_bytes - before.pooled_bytes,
        }
    }

    /// Tokens attended to by a query on average; 0 without any.
    pub fn average_tokens(&self) -> f64 {
        self.tokens as f64 / (self.full_queries + self.sparse_queries).max(1) as f64
    }
}

impl AddAssign for AttentionReads {
    fn add_assign(&mut self, other: Self) {
        // By name, so that a new field is not forgotten.
        let Self {
            full_queries,
            dense_queries,
            sparse_queries,
            tokens,
            most_tokens,
            kv_bytes,
            pooled_bytes,
        } = other;
        self.full_queries += full_queries;
        self.dense_queries += dense_queries;
        self.sparse_queries += sparse_queries;
        self.tokens += tokens;
        self.most_tokens = self.most_tokens.max(most_tokens);
        self.kv_bytes += kv_bytes;
        self.pooled_bytes += pooled_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kv::{IndexShape, KvType},
        ops::testing::each_device,
    };

    #[test]
    fn a_decoded_token_reads_the_same_at_any_depth() {
        each_device(|t| {
            let kv = KvLayer::new(&t.gpu, 2, 256, KvType::F16, KvType::F16).unwrap();
            let shape = IndexShape { heads: 4, head_dim: 128, ratio: 4, budget: 2048 };
            let index = IndexLayer::new(shape, KvType::F16).unwrap();
            let at = |position| {
                let mut reads = AttentionReads::default();
                reads.add(&kv, Some(&index), (position, 1), false);
                reads
            };
            let (near, far) = (at(4095), at(262_143));
            assert_eq!((near.kv_bytes, far.kv_bytes), (2048 * 2048, 2048 * 2048));
            assert_eq!((near.pooled_bytes, far.pooled_bytes), (1024 * 256, 65_536 * 256));
            assert_eq!((far.sparse_queries, far.full_queries), (1, 0));
        });
    }

    #[test]
    fn chunks_add_up() {
        each_device(|t| {
            let kv = KvLayer::new(&t.gpu, 1, 8, KvType::F32, KvType::F16).unwrap();
            let shape = IndexShape { heads: 1, head_dim: 8, ratio: 4, budget: 8 };
            let index = IndexLayer::new(shape, KvType::F32).unwrap();
            let mut reads = AttentionReads::default();
            reads.add(&kv, Some(&index), (0, 5), true);
            reads.add(&kv, Some(&index), (5, 9), false);
            // 1 to 11 of as many, then 8 of 12, 9 of 13, 10 of 14.
            let tokens = 66 + 27;
            let want = AttentionReads {
                full_queries: 11,
                dense_queries: 5,
                sparse_queries: 3,
                tokens,
                most_tokens: 11,
                kv_bytes: tokens * 48,
                pooled_bytes: 3 * 3 * 32,
            };
            assert_eq!(reads, want);
            let mut dense = AttentionReads::default();
            dense.add(&kv, None, (2, 2), false);
            assert_eq!((dense.full_queries, dense.dense_queries), (2, 2));
            assert_eq!((dense.tokens, dense.pooled_bytes), (7, 0));
            assert!((dense.average_tokens() - 3.5).abs() < 1e-9);
        });
    }
}
