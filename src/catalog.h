/*-------------------------------------------------------------------------
 *
 * catalog.h
 *	  Where idemq's tables are: the leaves of idemq.processed, cached.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_CATALOG_H
#define IDEMQ_CATALOG_H

#include "idemq.h"

#include "access/attnum.h"
#include "datatype/timestamp.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"

#include "clock.h"

/* One index of a leaf that insertions must fill. */
typedef struct LeafIndex
{
	Oid			oid;
	bool		digest;			/* unique, on nothing but the digest */
} LeafIndex;

/* One partition of idemq.processed. */
typedef struct Leaf
{
	Oid			oid;
	TimestampTz lower;			/* -infinity for MINVALUE */
	TimestampTz upper;			/* infinity for MAXVALUE */
	bool		permanent;		/* belongs to the extension */
	bool		writable;		/* may new claims go here? */
	uint64		version;		/* of its file and its filter trigger; 0: none */

	/* what catalog_know_leaf() found out, under a lock on the leaf */
	bool		known;
	Oid			probe;			/* the valid index on the digest */
	int			nindexes;
	LeafIndex  *indexes;
	AttrNumber	att_scope;
	AttrNumber	att_key;
	AttrNumber	att_claimed_at;
	AttrNumber	att_leaf;
} Leaf;

/* All of them, newest first. */
typedef struct LeafSet
{
	uint64		serial;			/* another number for every set */
	Oid			parent;
	Oid			clock;			/* idemq.clock */
	ClockBase	base;			/* what was read from it, */
	Oid			base_of;		/* and from which table */
	Oid			filter_function;	/* idemq._filter_row() */
	int			nleaves;
	Leaf	   *leaves;
} LeafSet;

extern void catalog_init(void);
extern Oid	catalog_relation(const char *name);
extern LeafSet *catalog_leaves(void);
extern LeafSet *catalog_leaves_nowait(void);
extern bool catalog_leaves_valid(void);
extern uint64 catalog_leaves_serial(void);
extern bool catalog_lock(Oid relid, LOCKMODE lockmode, bool wait);
extern void catalog_wait_for_lock(void);
extern Relation catalog_open_index(Oid relid, LOCKMODE lockmode, bool wait);
extern bool catalog_know_leaf(Leaf *leaf, Relation rel, bool wait);
extern Leaf *catalog_leaf_for(const LeafSet *set, TimestampTz stamp);

#endif							/* IDEMQ_CATALOG_H */
