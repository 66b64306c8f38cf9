//! A move: a strided box of bytes from an input to an output.

/// Where the bytes of a move come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The input of one member.
    Member(usize),
    /// The inputs of all members, reduced as a balanced tree over each axis of the group.
    All,
}

/// One loop of a move: `count` steps of the strides, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loop {
    pub(crate) count: usize,
    pub(crate) src_stride: usize,
    pub(crate) dst_stride: usize,
}

pub(super) const ONCE: Loop = Loop {
    count: 1,
    src_stride: 0,
    dst_stride: 0,
};

/// A box of bytes in a source and in an output: three nested loops (outermost first) around a contiguous run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) source: Source,
    /// Index into [`Geometry::outputs`].
    pub(crate) output: usize,
    /// Offset in the source, in bytes.
    pub(crate) src: usize,
    /// Offset in the output, in bytes.
    pub(crate) dst: usize,
    pub(crate) loops: [Loop; 3],
    /// Bytes that are contiguous on both sides.
    pub(crate) run: usize,
}

impl Move {
    /// Returns the move of one run of bytes.
    pub(crate) fn run(source: Source, output: usize, [src, dst, run]: [usize; 3]) -> Self {
        Self {
            source,
            output,
            src,
            dst,
            loops: [ONCE; 3],
            run,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.loops.iter().map(|l| l.count).product::<usize>() * self.run
    }

    /// One past the last byte read, relative to the start of the source.
    pub(crate) fn src_end(&self) -> usize {
        self.src + self.span(|l| l.src_stride)
    }

    /// One past the last byte written.
    pub(crate) fn dst_end(&self) -> usize {
        self.dst + self.span(|l| l.dst_stride)
    }

    /// Bytes from the first to past the last.
    fn span(&self, stride: impl Fn(&Loop) -> usize) -> usize {
        let loops = self.loops.iter();
        loops.map(|l| (l.count - 1) * stride(l)).sum::<usize>() + self.run
    }

    /// Merges loops that together are one longer run or one longer loop, and moves the empty ones to the front.
    pub(super) fn merged(mut self) -> Self {
        let mut kept: Vec<Loop> = Vec::with_capacity(3);
        for &outer in self.loops.iter().rev().filter(|l| l.count != 1) {
            match kept.last_mut() {
                None if outer.src_stride == self.run && outer.dst_stride == self.run => {
                    self.run *= outer.count
                }
                Some(last)
                    if outer.src_stride == last.count * last.src_stride
                        && outer.dst_stride == last.count * last.dst_stride =>
                {
                    last.count *= outer.count;
                }
                _ => kept.push(outer),
            }
        }
        self.loops = [ONCE; 3];
        for (slot, l) in self.loops.iter_mut().rev().zip(kept) {
            *slot = l;
        }
        self
    }

    /// Cuts the move into pieces of about `target` bytes (a multiple of 64, so that no element is cut), in order.
    pub(super) fn split_into(self, target: usize, pieces: &mut Vec<Move>) {
        let bytes = self.bytes();
        if bytes <= target + target / 2 {
            pieces.push(self);
            return;
        }
        let Some(at) = self.loops.iter().position(|l| l.count > 1) else {
            let mut start = 0;
            while start < self.run {
                let left = self.run - start;
                let run = if left <= target + target / 2 {
                    left
                } else {
                    target
                };
                pieces.push(Move {
                    src: self.src + start,
                    dst: self.dst + start,
                    run,
                    ..self
                });
                start += run;
            }
            return;
        };
        let Loop {
            count,
            src_stride,
            dst_stride,
        } = self.loops[at];
        let step = (target / (bytes / count)).max(1);
        let mut start = 0;
        while start < count {
            let mut piece = self;
            piece.loops[at].count = step.min(count - start);
            piece.src += start * src_stride;
            piece.dst += start * dst_stride;
            piece.split_into(target, pieces);
            start += step;
        }
    }
}
