"""Rows in memory that the processes of one host share; who may have them is said by one small server."""
