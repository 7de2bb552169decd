/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  What differs between the server versions that idemq supports.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_COMPAT_H
#define IDEMQ_COMPAT_H

#include "idemq.h"

#include "access/genam.h"
#include "storage/lock.h"

/* 18 counts index searches in a struct that the caller may hand in */
#if PG_VERSION_NUM >= 180000
#define compat_index_beginscan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, NULL, nkeys, 0)
#else
#define compat_index_beginscan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, nkeys, 0)
#endif

/* 16 has one function for the access rights of all kinds of objects */
#if PG_VERSION_NUM >= 160000
#define compat_may_execute(function, role) \
	(object_aclcheck(ProcedureRelationId, function, role, ACL_EXECUTE) == ACLCHECK_OK)
#else
#define compat_may_execute(function, role) \
	(pg_proc_aclcheck(function, role, ACL_EXECUTE) == ACLCHECK_OK)
#endif

/* 17 can ask for stronger modes as well */
#if PG_VERSION_NUM >= 170000
#define compat_lock_held(tag, lockmode) LockHeldByMe(tag, lockmode, false)
#else
#define compat_lock_held(tag, lockmode) LockHeldByMe(tag, lockmode)
#endif

/* 17 added a call that ends a series of insertions into an index */
#if PG_VERSION_NUM < 170000
#define index_insert_cleanup(index, info) ((void) 0)
#endif

/* 18 has generated columns that are not stored, and are not in the rows that triggers see */
#if PG_VERSION_NUM >= 180000
#include "rewrite/rewriteHandler.h"
#define compat_is_virtual(attribute) \
	((attribute)->attgenerated == ATTRIBUTE_GENERATED_VIRTUAL)
#define compat_generation_expression(rel, attno) \
	build_generation_expression(rel, attno)
#define compat_expand_generated(node, rel, varno) \
	expand_generated_columns_in_expr(node, rel, varno)
#else
#define compat_is_virtual(attribute) false
#define compat_generation_expression(rel, attno) NULL
#define compat_expand_generated(node, rel, varno) (node)
#endif

/* the minor releases of May 2025 made it flags, so that it is known whether it is known */
#ifdef SYNC_STANDBY_DEFINED
#define compat_sync_standbys_defined(ctl) \
	(((ctl)->sync_standbys_status & SYNC_STANDBY_DEFINED) != 0)
#else
#define compat_sync_standbys_defined(ctl) ((ctl)->sync_standbys_defined)
#endif

#endif							/* IDEMQ_COMPAT_H */
