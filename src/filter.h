/*-------------------------------------------------------------------------
 *
 * filter.h
 *	  A filter over the leaves: this key is definitely not there.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_FILTER_H
#define IDEMQ_FILTER_H

#include "idemq.h"

#include "catalog.h"
#include "digest.h"

/* looks in vain that a claim of a new key may cost before idem_status warns */
#define FILTER_FALSE_LOOKS	0.05

/* leaves that can be covered, of all databases together */
#define FILTER_LEAVES		512

typedef enum FilterState
{
	FILTER_NONE,				/* not covered: every claim looks into the
								 * leaf */
	FILTER_BUILDING,
	FILTER_READY,
} FilterState;

/* What the memory is good for. */
typedef struct FilterInfo
{
	Size		bytes;			/* 0: there is no filter */
	bool		full;			/* every column is a leaf's, none has two */
	double		false_looks;	/* to be expected for a claim of a new key, in
								 * ready leaves */
	double		fullest;		/* keys in the fullest ready lane, about */
} FilterInfo;

extern void filter_init(void);
extern int	filter_candidates(LeafSet *set, const IdemDigest *digest, Leaf ***candidates);
extern int	filter_all(LeafSet *set, Leaf ***candidates);
extern void filter_prefetch(const IdemDigest *digest);
extern void filter_add(LeafSet *set, Oid leaf, const IdemDigest *digest);
extern bool filter_build_step(LeafSet *set);
extern void filter_forget_database(Oid dboid);
extern FilterState filter_state(const Leaf *leaf);
extern void filter_info(FilterInfo *info);
extern int	filter_columns(double keys, int leaves);
extern double filter_capacity(double bytes, int leaves);
extern double filter_bytes_for(double keys, int leaves);

#endif							/* IDEMQ_FILTER_H */
